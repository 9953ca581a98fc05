"""Mend a small package, as an `Environment` whose workspace forks."""

from __future__ import annotations

import copy
import hashlib
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier.sandbox.scripts import require_sandbox
from verl_hier.text import without_middle
from verl_hier_plugins.environments.repository.judge import TestResult, passes, run_tests
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.repositories import Repository, repository_of
from verl_hier_plugins.environments.repository.spelling import DIGITS, SIGNS, spell, take_number, unspell
from verl_hier_plugins.environments.repository.tasks import MODULES
from verl_hier_plugins.environments.repository.units import UNITS
from verl_hier_plugins.environments.repository.workspace import BadChange, Workspace

VERBS = ("list", "read", "replace", "write", "test", "submit")
LONGEST_ACTION = 24_000
TEXTS = {
    "symbols": {
        "plain": "Say one of `list`, `read PATH`, `replace PATH FIRST-LAST` with the new lines below it, `write PATH` "
        "with the text of the file below it, `test`, `submit`.",
        "tags": "Say one of <list></list>, <read>PATH</read>, <replace>PATH FIRST-LAST\nnew lines</replace>, "
        "<write>PATH\ntext</write>, <test></test>, <submit></submit>.",
        "invalid": "That is no action: {}.",
        "replaced": "Replaced; {} has {} lines now.",
        "written": "Written; {} has {} lines now.",
        "passed": "All {} tests pass.",
        "failed": "{} of {} tests fail.",
        "ended": "The tests did not run to their end ({}).",
        "won": "Right: all hidden tests pass.",
        "lost": "Wrong: a hidden test fails.",
        "over": "The task is over.",
    },
    "words": {
        "plain": "ready",
        "tags": "ready",
        "invalid": "no action",
        "replaced": "done",
        "written": "done",
        "passed": "passed",
        "failed": "failed",
        "ended": "stopped",
        "won": "right",
        "lost": "wrong",
        "over": "over",
    },
}
_PLACE = re.compile(r"(\S{1,200})[ \t]{1,8}(\d{1,6})(?:-(\d{1,6}))?")


class RepositoryEnvironment(Environment):
    """One package to be mended. Its state is the workspace and what was read of it.

    Attributes:
        repository: what the task is made of.
        workspace: the files as they are now.
        known: what the agent has read: kind of action, what it was about, and a hash of the answer.
        over: whether the package was submitted.
    """

    def __init__(self, options: RepositoryOptions) -> None:
        self._options = options
        self._texts = TEXTS[options.spelling]
        self._words = options.spelling == "words"
        self.task: Mapping[str, Any] = {}
        self.repository: Repository
        self.workspace = Workspace({})
        self.known: frozenset[tuple[str, str, str]] = frozenset()
        self.over = self._won = False
        self._turns = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. `seed` has no effect, because all random choices are part of the task."""
        try:
            made = repository_of(task)
        except (KeyError, TypeError, IndexError) as error:
            raise RecipeError(f"hier.environment: that is no task of repository ({error!r}); use `tasks`.") from error
        if made is None:
            raise RecipeError("hier.environment: a repository task whose fault does not show; use `tasks`.")
        self.task, self.repository, self.workspace = task, made, made.broken
        self.known, self.over, self._won, self._turns = frozenset(), False, False, 0
        return self._answer(self._texts[self._options.actions])

    def step(self, action: str) -> StepResult:
        """List, read or change files, run the tests, or submit."""
        if self.over:
            return self._answer(self._texts["over"], valid=False)
        self._turns += 1
        parsed = parse_verb(action, VERBS) if len(action) <= LONGEST_ACTION else None
        if parsed is None:
            return self._answer(self._texts["invalid"].format("say one of " + ", ".join(VERBS)), valid=False)
        verb, body = parsed
        acts: dict[str, Callable[[str], StepResult]] = {
            **{"list": self._list, "read": self._read, "replace": self._replace, "write": self._write},
            **{"test": self._test, "submit": self._submit},
        }
        try:
            return acts[verb](body)
        except BadChange as error:
            return self._answer(self._texts["invalid"].format(error), valid=False)

    def fork(self) -> RepositoryEnvironment:
        """A copy; workspaces do not change, so both may have the same one."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the current task; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.repository.expert import RepositoryExpert

        return RepositoryExpert(self, self._options, rng, skip_stage)

    def vocabulary(self) -> list[str]:
        """The words of the spelling `words`."""
        if not self._words:
            return []
        units = [unit for unit in UNITS.values() if not unit.level]
        numbers = dict.fromkeys("abc", 0)
        code = [spell(f"{unit.name} {unit.does} {unit.body}".format(**numbers)) for unit in units]
        return [
            *(*DIGITS, *SIGNS.values(), *VERBS, *MODULES, *self._texts.values(), *code),
            "def n is not true false mend submit | no file",
        ]

    def path_of(self, name: str) -> str:
        """The path that a text names; in words, modules of the package stand for their files."""
        return f"{self.repository.package}/{name.strip()}.py" if self._words else name.strip()

    # ---- actions -----------------------------------------------------------------------------------------------------

    def _list(self, body: str) -> StepResult:
        package = f"{self.repository.package}/"
        if not self._words:
            return self._learned("list", "", "\n".join(self.workspace))
        names = [path.removeprefix(package).removesuffix(".py") for path in self.workspace if path.startswith(package)]
        return self._learned("list", "", " ".join(name for name in names if name.isalpha()))

    def _read(self, body: str) -> StepResult:
        path = self.path_of(body)
        if path not in self.workspace:
            raise BadChange("no file" if self._words else "there is no such file")
        lines = enumerate(self.workspace[path].splitlines(), 1)
        if self._words:
            text = " ".join(f"| {spell(str(number))} {spell(line)}" for number, line in lines if line.strip())
        else:
            text = "\n".join(f"{number:3} {line}" for number, line in lines)
        return self._learned("read", path, self._shortened(text))

    def _replace(self, body: str) -> StepResult:
        if self._words:
            name, _, rest = body.partition(" ")
            path, (first, rest) = self.path_of(name), take_number(rest)
            if first is None:
                raise BadChange("no line")
            last, lines = first, [unspell(rest)]
        else:
            found = _PLACE.match(body)
            if found is None:
                raise BadChange("it has the form `replace PATH FIRST-LAST`, and the new lines below it")
            path, first, last = found[1], int(found[2]), int(found[3] or found[2])
            lines = _lines(body[found.end() :])
        self.workspace = self.workspace.with_lines(path, first, last, lines)
        return self._changed("replaced", path)

    def _write(self, body: str) -> StepResult:
        if self._words:
            raise BadChange("no writing")
        path, _, text = body.partition("\n")
        lines = _lines(f"\n{text}")
        self.workspace = self.workspace.with_file(path.strip(), "".join(f"{line}\n" for line in lines))
        return self._changed("written", path.strip())

    def _test(self, body: str) -> StepResult:
        results = run_tests(self.workspace, self._options.time_limit_s)
        if isinstance(results, str):
            return self._learned("test", "", self._texts["ended"].format(results))
        failed = [result for result in results if result.failure]
        if not failed:
            return self._learned("test", "", self._texts["passed"].format(len(results)))
        if self._words:
            first = failed[0]
            text = f"{spell(first.failure)} not {spell(first.value)}"
            return self._learned("test", "", f"{self._texts['failed']} {self._shortened(text)}")
        text = "\n".join([self._texts["failed"].format(len(failed), len(results)), *map(_shown, failed)])
        return self._learned("test", "", self._shortened(text))

    def _submit(self, body: str) -> StepResult:
        made = self.repository
        self._won = passes(self.workspace, made.package, made.hidden, self._options.time_limit_s)
        self.over = True
        return self._answer(self._texts["won" if self._won else "lost"], float(self._won))

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _changed(self, text: str, path: str) -> StepResult:
        return self._answer(self._texts[text].format(path, len(self.workspace[path].splitlines())))

    def _learned(self, verb: str, what: str, text: str) -> StepResult:
        self.known |= {(verb, what, _hash(text))}
        return self._answer(text)

    def _shortened(self, text: str) -> str:
        return without_middle(text, self._options.output_chars)

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True) -> StepResult:
        changed = sum(text != self.repository.broken.get(path) for path, text in self.workspace.items())
        return StepResult(
            text=text,
            reward=reward if valid else reward - self._options.invalid_penalty,
            done=self.over,
            truncated=not self.over and self._turns >= self._options.max_steps,
            valid=valid,
            anchor=self._anchor(),
            info={"won": self._won, "changed": changed},
        )

    def _anchor(self) -> str:
        """The files, and what the agent has read, in any order."""
        known = (self.task.get("instruction"), self.workspace.digest, sorted(self.known), self.over)
        return f"read {len(self.known)} | {_hash(repr(known))}"


def _shown(result: TestResult) -> str:
    """A failed test as the agent reads it."""
    where = f"{result.file} {result.test}".strip()
    value = f", and the left side is {result.value}" if result.value else ""
    return f"{where}: {result.failure}{value}"


def _lines(text: str) -> list[str]:
    """The lines of code behind the place of an action, without a code fence around them."""
    lines = text.lstrip(" \t:").removeprefix("\n").splitlines()
    if lines and lines[0].startswith("```"):
        lines = lines[1:]
        if lines and lines[-1].startswith("```"):
            lines = lines[:-1]
    return lines


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def build(options: RepositoryOptions) -> RepositoryEnvironment:
    """A new environment; refused where the sandbox cannot be set up."""
    require_sandbox("repository")
    return RepositoryEnvironment(options)
