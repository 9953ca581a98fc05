"""A question, a Python tool and one answer, as an `Environment`."""

from __future__ import annotations

import copy
import hashlib
import random
import re
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import FINAL_ANSWER, Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.environments.numbers import last_number
from verl_hier.environments.scoring import equal_form
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.errors import RecipeError
from verl_hier.sandbox.scripts import require_sandbox, run_once
from verl_hier.text import without_middle
from verl_hier_plugins.environments.python_tool.arithmetic import WORDS, read, spell
from verl_hier_plugins.environments.python_tool.options import PythonToolOptions
from verl_hier_plugins.environments.python_tool.tasks import score

VERBS = ("python", "answer")
LONGEST_SCRIPT = 20_000
TEXTS = {
    "symbols": {
        "opening": "Say `python <code>` to run a script and see what it prints, or `answer <text>` to answer, once.",
        "invalid": "That is neither `python <code>` nor `answer <text>`.",
        "over": "The task is over.",
        "right": "Correct.",
        "wrong": "Wrong.",
    },
    "alone": {
        "opening": "Think step by step, then give the answer as `<answer>text</answer>`, once.",
        "invalid": "That has no `<answer>text</answer>`.",
        "over": "The task is over.",
        "right": "Correct.",
        "wrong": "Wrong.",
    },
    "numbers": {
        "opening": "The last number that you write is your answer.",
        "invalid": "That has no number.",
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


def run_tool(code: str, options: PythonToolOptions) -> tuple[str, str]:
    """What the agent sees of a script's outcome, and the outcome's kind."""
    outcome = run_once(code, options.time_limit_s, options.memory_mb, echo=True)
    printed = outcome.stdout.strip()
    if options.spelling == "words":
        is_number = outcome.kind == "ok" and re.fullmatch(r"-?\d+", printed)
        return spell(printed) if is_number else "error", outcome.kind
    last = outcome.stderr.strip().rpartition("\n")[2] if outcome.kind == "error" else ENDINGS.get(outcome.kind, "")
    # Addresses differ from run to run.
    text = _ADDRESS.sub("at 0x", "\n".join(part for part in (printed, last) if part))
    return without_middle(text, options.output_chars) or "(nothing printed)", outcome.kind


def _kind(options: PythonToolOptions) -> str:
    """Which of `TEXTS` the agent is told."""
    if options.last_number:
        return "numbers"
    return "alone" if options.spelling == "symbols" and not options.tool else options.spelling


class PythonToolEnvironment(Environment):
    """One question, or a chain of them. Its state is the calls so far and their output, because scripts share nothing.

    Attributes:
        task: the question that is asked now: the task of the reset, or a further one of its chain.
        calls: the calls for it so far: the script as the agent wrote it, and the output that it saw.
    """

    def __init__(self, options: PythonToolOptions) -> None:
        self._options = options
        self._texts = TEXTS[_kind(options)]
        self._verbs = VERBS if options.tool else ("answer",)
        self.task: Mapping[str, Any] = {}
        self.calls: tuple[tuple[str, str], ...] = ()
        self._turns = 0
        self._over = self._used = False
        self._left: tuple[Mapping[str, Any], ...] = ()
        self._scores: tuple[float, ...] = ()

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. `seed` has no effect, because all random choices are part of the task."""
        if "instruction" not in task or "family" not in task:
            raise RecipeError("hier.environment: a python_tool task needs `instruction` and `family`; use `tasks`.")
        self.task, self.calls, self._turns, self._over, self._used = task, (), 0, False, False
        self._left, self._scores = tuple(task.get("next", ())), ()
        return self._answer(self._texts["opening"])

    def step(self, action: str) -> StepResult:
        """Call the tool or answer."""
        if self._over:
            return self._answer(self._texts["over"], valid=False)
        self._turns += 1
        parsed = self._parsed(action)
        if parsed is not None and parsed[1]:
            verb, body = parsed
            if verb == "answer":
                return self._finish(body)
            code = self._script(body)
            if code is not None:
                return self._call(body, code)
        return self._go_on(self._texts["invalid"], valid=False)

    def fork(self) -> PythonToolEnvironment:
        """A copy; no mutable state is shared."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the current task; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.python_tool.expert import expert_of

        return expert_of(self, self._options, rng, skip_stage=skip_stage, remember=remember)

    def vocabulary(self) -> list[str]:
        """The words of the spelling `words`; with symbols there are too many numbers to list."""
        if self._options.spelling != "words":
            return []
        tags = [] if self._options.tool else ["<answer> </answer>"]
        return [*VERBS, *WORDS.values(), *TEXTS["words"].values(), "error", "compute", *tags]

    def _parsed(self, action: str) -> tuple[str, str] | None:
        """The verb of an action and what it is applied to; None when the action has none."""
        if not self._options.last_number:
            return parse_verb(action, self._verbs)
        number = last_number(without_thoughts(action))
        return None if number is None else ("answer", str(number))

    def _script(self, body: str) -> str | None:
        """The script of a call, None when the call is not understood."""
        if self._options.spelling == "words":
            expression = read(body)
            return f"print({expression})" if expression else None
        return body if len(body) <= LONGEST_SCRIPT else None

    def _call(self, body: str, code: str) -> StepResult:
        text, kind = run_tool(code, self._options)
        self._used = True
        if (body, text) not in self.calls:
            self.calls = (*self.calls, (body, text))
        return self._go_on(text, reward=-self._options.call_penalty, tool=kind)

    def _go_on(self, text: str, **answer: Any) -> StepResult:
        """The same question again, unless its turns are used up and another one follows."""
        used_up = bool(self._left) and self._turns >= self._options.max_steps
        return self._ended(text, 0.0, **answer) if used_up else self._answer(text, **answer)

    def _finish(self, body: str) -> StepResult:
        given = (read(body) or body) if self._options.spelling == "words" else body
        found = score(self.task, given)
        won = found >= 1.0 - 1e-9
        said = {} if self._options.chain > 1 else {FINAL_ANSWER: equal_form(given)}
        return self._ended(
            self._texts["right" if won else "wrong"],
            found,
            reward=found if self._options.partial_credit else float(won),
            **said,
        )

    def _ended(self, text: str, found: float, **answer: Any) -> StepResult:
        """A question has got its score: the next one of the chain, or the end."""
        self._scores = (*self._scores, found)
        if self._left:
            self.task, *left = self._left
            self._left, self.calls, self._turns = tuple(left), (), 0
            return self._answer(f"{text}\n{self.task['instruction']}", **answer)
        self._over = True
        won, mean = min(self._scores) >= 1.0 - 1e-9, sum(self._scores) / len(self._scores)
        used = {"used_tool": self._used} if self._options.tool else {}
        return self._answer(text, won=won, score=mean, **used, **answer)

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True, **info: Any) -> StepResult:
        return StepResult(
            text=text,
            reward=reward if valid else reward - self._options.invalid_penalty,
            done=self._over,
            truncated=not self._over and self._turns >= self._options.max_steps,
            valid=valid,
            anchor=self._anchor(),
            info={"won": False, "score": 0.0, "calls": len(self.calls), **self._asked(), **info},
        )

    def _asked(self) -> dict[str, Any]:
        """What a worker can know of a chain: which question is asked now, and the scores of those before it."""
        return {} if self._options.chain == 1 else {"asked": self.task["instruction"], "scores": list(self._scores)}

    def _anchor(self) -> str:
        """What the agent can know: the question, and the calls with their outputs in any order."""
        scores = self._scores if self._options.chain > 1 else ()
        known = repr((self.task.get("instruction"), sorted(self.calls), self._over, *scores))
        return f"calls {len(self.calls)} | {hashlib.blake2b(known.encode(errors='replace'), digest_size=8).hexdigest()}"


def build(options: PythonToolOptions) -> PythonToolEnvironment:
    """A new environment; with the tool it is refused where the sandbox cannot be set up."""
    if options.tool:
        require_sandbox("python_tool")
    return PythonToolEnvironment(options)
