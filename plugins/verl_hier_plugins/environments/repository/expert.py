"""A scripted expert: it reads the module in which something is wrong, writes the right lines, and submits."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping, Sequence

from verl_hier_plugins.environments.repository.environment import RepositoryEnvironment
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.repositories import bugs_of
from verl_hier_plugins.environments.repository.spelling import spell
from verl_hier_plugins.environments.repository.units import UNITS


class RepositoryExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    With the stage skipped, it submits what it found without mending the last function. `mistake` writes another bug.
    """

    def __init__(
        self,
        environment: RepositoryEnvironment,
        options: RepositoryOptions,
        rng: random.Random,
        skip_stage: float = 0.0,
    ) -> None:
        self._environment = environment
        self._words, self._tags = options.spelling == "words", options.actions == "tags"
        targets = environment.repository.targets
        self._targets = targets[: len(targets) - (rng.random() < skip_stage)]
        self.subgoals: tuple[str, ...] = (*(f"mend {name} in {module}" for name, module in self._targets), "submit")

    def advise(self, subgoal: int) -> str | None:
        """Read the module of a function, replace what is wrong, or submit."""
        if self._environment.over:
            return None
        if subgoal == len(self._targets):
            return self._said("submit", "")
        module = self._targets[subgoal][1]
        wrong = self._wrong(module)
        if wrong is None:
            return None
        if not self._has_read(module):
            return self._said("read", self._file(module))
        first, last, lines = wrong
        return self._replacing(module, first, last, lines)

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """Another bug in the line that is wrong, once its module was read."""
        if subgoal == len(self._targets) or self._environment.over:
            return None
        name, module = self._targets[subgoal]
        wrong = self._wrong(module)
        if wrong is None or not self._has_read(module) or wrong[0] != wrong[1] or len(wrong[2]) != 1:
            return None
        (right,), now = wrong[2], self._environment.workspace[self._path(module)].splitlines()[wrong[0] - 1]
        others = sorted(_other_lines(name, self._environment.task["values"][name], right) - {now})
        return self._replacing(module, wrong[0], wrong[0], [rng.choice(others)]) if others else None

    def _wrong(self, module: str) -> tuple[int, int, list[str]] | None:
        """The first and the last line of a module that differ from the reference, and what has to be there; None where
        it is as it should be. White space does not count. In words, one line at a time."""
        path, made = self._path(module), self._environment.repository
        now, right = self._environment.workspace[path].splitlines(), made.reference[path].splitlines()
        before = _common(now, right)
        behind = _common(now[before:][::-1], right[before:][::-1])
        if before == len(now) == len(right):
            return None
        if self._words:
            return before + 1, before + 1, [right[before]]
        return before + 1, len(now) - behind, right[before : len(right) - behind]

    def _replacing(self, module: str, first: int, last: int, lines: Sequence[str]) -> str:
        if self._words:
            return f"replace {module} {spell(str(first))} {spell(' '.join(lines))}"
        place = f"{first}-{last}" if last > first else f"{first}"
        return self._said("replace", "\n".join([f"{self._file(module)} {place}", *lines]))

    def _said(self, verb: str, body: str) -> str:
        return f"<{verb}>{body}</{verb}>" if self._tags else f"{verb} {body}".strip()

    def _has_read(self, module: str) -> bool:
        path = self._path(module)
        return any(verb == "read" and what == path for verb, what, _ in self._environment.known)

    def _path(self, module: str) -> str:
        return f"{self._environment.repository.package}/{module}.py"

    def _file(self, module: str) -> str:
        return module if self._words else self._path(module)


def _common(some: Sequence[str], others: Sequence[str]) -> int:
    """How many lines two texts begin with that are the same, whatever their white space."""
    pairs = zip(some, others, strict=False)
    return next(
        (n for n, pair in enumerate(pairs) if len({"".join(line.split()) for line in pair}) > 1),
        min(len(some), len(others)),
    )


def _other_lines(name: str, values: Mapping[str, int], right: str) -> set[str]:
    """What bugs of a function have in the place of one of its lines."""
    lines = ast.unparse(UNITS[name].tree(values)).splitlines()
    bugs = [ast.unparse(bug).splitlines() for bug in bugs_of(name, values)]
    return {bug[lines.index(right)] for bug in bugs if right in lines and len(bug) == len(lines)} - {right}
