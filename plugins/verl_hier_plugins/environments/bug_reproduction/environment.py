"""Reproduce a described bug by a test that fails because of it, as an `Environment` with verification in stages."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.errors import RecipeError
from verl_hier.sandbox.provider import SandboxError
from verl_hier.sandbox.scripts import require_sandbox, run_once
from verl_hier_plugins.environments.bug_reproduction.checks import DIGITS, SIGNS, BadTest, Check, read_test, spell
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions
from verl_hier_plugins.environments.bug_reproduction.templates import TEMPLATES

STAGES = ("parse", "correct", "buggy")
"""A test is parsed, passes on the correct function, fails on the buggy one."""

MEMORY_MB = 128
PASSED = "pass"
UNKNOWN = ("timeout", "memory", "output", "killed", "error", "raise MemoryError")
"""Results of a check that was not compared, see `run_checks`."""

TEXTS = {
    "symbols": {
        "opening": "Submit a test that passes on the correct function and fails on the buggy one: `test f(…) == …`.",
        "invalid": "Not understood: {}.",
        "correct": "The test fails on the correct function: {}.",
        "buggy": "The test passes on the buggy function as well: it does not show the bug.",
        "won": "Reproduced: the test passes on the correct function and fails on the buggy one.",
        "over": "The task is over.",
    },
    "words": {
        "opening": "ready",
        "invalid": "no test",
        "correct": "wrong value {}",
        "buggy": "no bug there",
        "won": "reproduced",
        "over": "over",
    },
}
_SCRIPT = """{source}
for arguments, expected in {checks}:
    try:
        value = f(*arguments)
        print("pass" if value == expected else f"fail {{value!r}}"[:200])
    except Exception as error:
        print("raise", type(error).__name__)
"""


def run_checks(source: str, checks: Sequence[Check], time_limit_s: int) -> tuple[str, ...]:
    """For each check `pass`, `fail <value>`, `raise <exception>`, or what ended the run (`timeout`, …).

    What the machine may have ended was run twice, see `run_once`.
    """
    listed = "".join(f"(({check.arguments},), {check.expected})," for check in checks)
    outcome = run_once(_SCRIPT.format(source=source, checks=f"({listed})"), time_limit_s, MEMORY_MB)
    lines = outcome.stdout.splitlines()[: len(checks)]
    return (*lines, *[outcome.kind] * (len(checks) - len(lines)))


class BugReproductionEnvironment(Environment):
    """One bug. Its state is the tests so far, because each one runs on fresh functions.

    Attributes:
        task: the task of the reset.
        tests: the tests so far that were understood, without repetitions.
    """

    def __init__(self, options: BugReproductionOptions) -> None:
        self._options = options
        self._texts = TEXTS[options.spelling]
        self.task: Mapping[str, Any] = {}
        self.tests: tuple[str, ...] = ()
        self._turns = 0
        self._best = 0
        self._won = False

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. `seed` has no effect, because all random choices are part of the task."""
        if task.get("function") not in TEMPLATES:
            raise RecipeError("hier.environment: a bug_reproduction task needs a known `function`; use `tasks`.")
        self.task, self.tests, self._turns, self._best, self._won = task, (), 0, 0, False
        return self._answer(self._texts["opening"])

    def step(self, action: str) -> StepResult:
        """Submit a test."""
        if self._won:
            return self._answer(self._texts["over"], valid=False)
        self._turns += 1
        words = self._options.spelling == "words"
        parsed = parse_verb(action, ("test", "assert"))
        arguments = TEMPLATES[self.task["function"]].arguments
        try:
            # A text without the verb may still be a test, such as `assert f(1) == 2`.
            body = parsed[1] if parsed else without_thoughts(action).strip()
            checks = read_test(body, arguments, self._options.max_checks, words)
        except BadTest as error:
            return self._judged(0, self._texts["invalid"].format(error), valid=False)
        test = "; ".join(map(str, checks))
        if test not in self.tests:
            self.tests = (*self.tests, test)
        return self._verify(checks)

    def fork(self) -> BugReproductionEnvironment:
        """A copy; no mutable state is shared."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the current task; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.bug_reproduction.expert import BugReproductionExpert

        return BugReproductionExpert(self, self._options.spelling, rng, skip_stage, remember)

    def vocabulary(self) -> list[str]:
        """The words of the spelling `words`: digits, signs, answers, and the texts of all templates."""
        if self._options.spelling != "words":
            return []
        texts = [text for each in TEMPLATES.values() for text in (each.does, *(bug.when for bug in each.bugs))]
        return [
            *(*DIGITS, *SIGNS, *self._texts.values(), "test", "is", "try", "f of n and m and xs : | bug"),
            *(spell(text.replace(",", "")) for text in ("the result is wrong when", *texts)),
        ]

    def _verify(self, checks: Sequence[Check]) -> StepResult:
        """Run the second and the third stage."""
        template, values = TEMPLATES[self.task["function"]], self.task["values"]
        results = run_checks(template.source(values), checks, self._options.time_limit_s)
        wrong = [(check, result) for check, result in zip(checks, results, strict=True) if result != PASSED]
        if wrong:
            return self._judged(1, self._texts["correct"].format(self._blame(*wrong[0])).strip())
        buggy = template.source(values, self.task["bug"])
        results = run_checks(buggy, checks, self._options.time_limit_s)
        if not any(result.startswith(("fail ", "raise ")) and result not in UNKNOWN for result in results):
            unknown = next((result for result in results if result in UNKNOWN), None)
            if unknown is not None:
                # The bugs of this environment give wrong values. A run that did not end says nothing of them, and to
                # take it for a failed check would reward tests that are slow.
                raise SandboxError(f"the test {checks[0]} did not run to its end on the buggy function ({unknown})")
            return self._judged(2, self._texts["buggy"])
        self._won = True
        return self._judged(3, self._texts["won"])

    def _blame(self, check: Check, result: str) -> str:
        """Which check failed on the correct function and, if the options reveal it, how."""
        kind, _, value = result.partition(" ")
        if self._options.spelling == "words":
            return spell(value) if self._options.reveal and kind == "fail" else ""
        if kind == "raise":
            return f"f({check.arguments}) raises {value}"
        if kind != "fail":
            return f"f({check.arguments}) does not end ({kind})"
        return f"f({check.arguments}) is {value}" if self._options.reveal else f"f({check.arguments}) is something else"

    def _judged(self, passed: int, text: str, valid: bool = True) -> StepResult:
        """The answer to a test that passed a number of stages."""
        scores = (0.0, *self._options.stage_scores)
        gained = max(scores[passed] - scores[self._best], 0.0)
        self._best = max(self._best, passed)
        failure = "" if passed == 3 else "strategy" if passed == 2 else "implementation"
        stage = STAGES[passed] if passed < 3 else "reproduced"
        return self._answer(text, gained, valid, stage=stage, stages_passed=passed, failure=failure)

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True, **info: Any) -> StepResult:
        scores = (0.0, *self._options.stage_scores)
        return StepResult(
            text=text,
            reward=reward if valid else reward - self._options.invalid_penalty,
            done=self._won,
            truncated=not self._won and self._turns >= self._options.max_steps,
            valid=valid,
            anchor=self._anchor(),
            info={"won": self._won, "score": scores[self._best], "tests": len(self.tests), **info},
        )

    def _anchor(self) -> str:
        """What the agent can know: the task, and its tests in any order."""
        known = repr((self.task.get("instruction"), sorted(self.tests)))
        return f"tests {len(self.tests)} | {hashlib.blake2b(known.encode(), digest_size=8).hexdigest()}"


def build(options: BugReproductionOptions) -> BugReproductionEnvironment:
    """A new environment; refused where the sandbox cannot be set up."""
    require_sandbox("bug_reproduction")
    return BugReproductionEnvironment(options)
