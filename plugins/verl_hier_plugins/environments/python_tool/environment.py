"""A question, a Python tool and one answer, as an `Environment`."""

from __future__ import annotations

import hashlib
import random
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier.sandbox.local import run_python
from verl_hier.sandbox.provider import Outcome, SandboxError, SandboxLimits
from verl_hier_plugins.environments.python_tool.arithmetic import WORDS, read, spell
from verl_hier_plugins.environments.python_tool.options import PythonToolOptions
from verl_hier_plugins.environments.python_tool.tasks import score

VERBS = ("python", "answer")
LONGEST_SCRIPT = 20_000
KEPT_CALLS = 4096
PATIENCE = 3
"""Wall seconds for one of processor time: a busy machine must not make a script fail."""
TEXTS = {
    "symbols": {
        "opening": "Say `python <code>` to run a script and see what it prints, or `answer <text>` to answer, once.",
        "invalid": "That is neither `python <code>` nor `answer <text>`.",
        "over": "The task is over.",
        "right": "Correct.",
        "wrong": "Wrong.",
    },
    "words": {"opening": "ready", "invalid": "python or answer", "over": "over", "right": "right", "wrong": "wrong"},
}
ENDINGS = {
    "timeout": "The script took too long.",
    "memory": "The script took too much memory.",
    "output": "The script printed too much.",
    "killed": "The script crashed.",
}
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


class Tool:
    """The tool of one set of options. Equal scripts have equal outcomes, so it runs each of the latest ones once."""

    def __init__(self, options: PythonToolOptions) -> None:
        self._options = options
        self._limits = SandboxLimits(
            cpu_s=options.time_limit_s, wall_s=PATIENCE * options.time_limit_s, memory_mb=options.memory_mb
        )
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def run(self, code: str) -> tuple[str, str]:
        """What the agent sees, and the outcome's kind."""
        if code not in self._known:
            outcome = run_python(code, self._limits, echo=True)
            self._known[code] = self._told(outcome), outcome.kind
            if len(self._known) > KEPT_CALLS:
                self._known.popitem(last=False)
        self._known.move_to_end(code)
        return self._known[code]

    def _told(self, outcome: Outcome) -> str:
        if self._options.spelling == "words":
            printed = outcome.stdout.strip()
            return spell(printed) if outcome.kind == "ok" and re.fullmatch(r"-?\d+", printed) else "error"
        last = outcome.stderr.strip().rpartition("\n")[2] if outcome.kind == "error" else ENDINGS.get(outcome.kind, "")
        # Addresses differ from run to run.
        text = _ADDRESS.sub("at 0x", "\n".join(part for part in (outcome.stdout.strip(), last) if part))
        half = self._options.output_chars // 2
        if len(text) > 2 * half:
            text = f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
        return text or "(nothing printed)"


class PythonToolEnvironment(Environment):
    """One question. Its whole state are the calls so far with what they printed: scripts share nothing."""

    def __init__(self, options: PythonToolOptions, tool: Tool) -> None:
        self._options = options
        self._tool = tool
        self._texts = TEXTS[options.spelling]
        self._task: Mapping[str, Any] = {}
        self._calls: tuple[tuple[str, str], ...] = ()
        self._turns = 0
        self._over = False

    @property
    def task(self) -> Mapping[str, Any]:
        """What was reset."""
        return self._task

    @property
    def calls(self) -> tuple[tuple[str, str], ...]:
        """Calls so far: what was asked to run, as the agent wrote it, and what it saw."""
        return self._calls

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Everything random was drawn when the task was made, so `seed` changes nothing."""
        if "instruction" not in task or "family" not in task:
            raise RecipeError("hier.environment: a python_tool task needs `instruction` and `family`; use `tasks`.")
        self._task, self._calls, self._turns, self._over = task, (), 0, False
        return self._answer(self._texts["opening"])

    def step(self, action: str) -> StepResult:
        """Call the tool or answer."""
        if self._over:
            return self._answer(self._texts["over"], valid=False)
        self._turns += 1
        parsed = parse_verb(action, VERBS)
        if parsed is not None and parsed[1]:
            verb, body = parsed
            if verb == "answer":
                return self._finish(body)
            code = self._script(body)
            if code is not None:
                return self._call(body, code)
        return self._answer(self._texts["invalid"], valid=False)

    def fork(self) -> PythonToolEnvironment:
        """A copy; nothing is shared that could change."""
        copy = PythonToolEnvironment(self._options, self._tool)
        copy._task, copy._calls, copy._turns, copy._over = self._task, self._calls, self._turns, self._over
        return copy

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the task that was reset; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.python_tool.expert import PythonToolExpert

        return PythonToolExpert(self, self._options.spelling, rng, skip_stage, remember)

    def vocabulary(self) -> list[str]:
        """The words of the short spelling; in the other one every number is a word, so there is no list."""
        if self._options.spelling != "words":
            return []
        return [*VERBS, *WORDS.values(), *TEXTS["words"].values(), "error", "compute"]

    def _script(self, body: str) -> str | None:
        """The script that a body stands for, None when it is none."""
        if self._options.spelling == "words":
            expression = read(body)
            return f"print({expression})" if expression else None
        return body if len(body) <= LONGEST_SCRIPT else None

    def _call(self, body: str, code: str) -> StepResult:
        text, kind = self._tool.run(code)
        if (body, text) not in self._calls:
            self._calls = (*self._calls, (body, text))
        return self._answer(text, reward=-self._options.call_penalty, tool=kind)

    def _finish(self, body: str) -> StepResult:
        self._over = True
        given = (read(body) or body) if self._options.spelling == "words" else body
        found = score(self._task, given)
        won = found >= 1.0 - 1e-9
        reward = found if self._options.partial_credit else float(won)
        return self._answer(self._texts["right" if won else "wrong"], reward=reward, won=won, score=found)

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True, **info: Any) -> StepResult:
        return StepResult(
            text=text,
            reward=reward if valid else reward - self._options.invalid_penalty,
            done=self._over,
            truncated=not self._over and self._turns >= self._options.max_steps,
            valid=valid,
            anchor=self._anchor(),
            info={"won": False, "score": 0.0, "calls": len(self._calls), **info},
        )

    def _anchor(self) -> str:
        """What the agent could know: the question, and the calls with their outputs in any order."""
        known = repr((self._task.get("instruction"), sorted(self._calls), self._over))
        return (
            f"calls {len(self._calls)} | {hashlib.blake2b(known.encode(errors='replace'), digest_size=8).hexdigest()}"
        )


_TOOLS: dict[PythonToolOptions, Tool] = {}


def build(options: PythonToolOptions) -> PythonToolEnvironment:
    """A new environment; those of one process and one set of options share their tool."""
    if options not in _TOOLS:
        try:
            run_python("")
        except SandboxError as error:
            raise RecipeError(
                f"hier.environment.name: python_tool cannot run scripts on this machine: {error}"
            ) from error
        _TOOLS[options] = Tool(options)
    return PythonToolEnvironment(options, _TOOLS[options])
