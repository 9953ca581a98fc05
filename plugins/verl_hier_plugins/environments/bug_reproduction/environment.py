"""Reproduce a described bug by a test that fails because of it, as an `Environment` with verification in stages."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier.sandbox.local import run_python
from verl_hier.sandbox.provider import SandboxError, SandboxLimits
from verl_hier_plugins.environments.bug_reproduction.checks import DIGITS, SIGNS, BadTest, Check, read_test, spell
from verl_hier_plugins.environments.bug_reproduction.library import TEMPLATES
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions

STAGES = ("parse", "correct", "buggy")
"""A test is understood, passes on the correct function, fails on the buggy one."""

KEPT_RUNS = 4096
PATIENCE = 3
"""Wall seconds for one of processor time: a busy machine must not make a test fail."""

PASSED = "pass"
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


class Bench:
    """Runs checks on functions, in the sandbox. Equal runs have equal results, so the latest ones are remembered."""

    def __init__(self, options: BugReproductionOptions) -> None:
        self._limits = SandboxLimits(cpu_s=options.time_limit_s, wall_s=PATIENCE * options.time_limit_s, memory_mb=128)
        self._known: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def run(self, source: str, checks: Sequence[Check]) -> tuple[str, ...]:
        """For each check `pass`, `fail <value>`, `raise <exception>`, or what ended the run (`timeout`, …)."""
        listed = "".join(f"(({check.arguments},), {check.expected})," for check in checks)
        script = _SCRIPT.format(source=source, checks=f"({listed})")
        if script not in self._known:
            outcome = run_python(script, self._limits)
            lines = outcome.stdout.splitlines()[: len(checks)]
            self._known[script] = (*lines, *[outcome.kind] * (len(checks) - len(lines)))
            if len(self._known) > KEPT_RUNS:
                self._known.popitem(last=False)
        self._known.move_to_end(script)
        return self._known[script]


class BugReproductionEnvironment(Environment):
    """One bug. Its whole state are the tests so far: they are run on fresh functions each time."""

    def __init__(self, options: BugReproductionOptions, bench: Bench) -> None:
        self._options = options
        self._bench = bench
        self._texts = TEXTS[options.spelling]
        self._task: Mapping[str, Any] = {}
        self._tests: tuple[str, ...] = ()
        self._turns = 0
        self._best = 0
        self._won = False

    @property
    def task(self) -> Mapping[str, Any]:
        """What was reset."""
        return self._task

    @property
    def tests(self) -> tuple[str, ...]:
        """The understood tests so far, each once."""
        return self._tests

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Everything random was drawn when the task was made, so `seed` changes nothing."""
        if task.get("function") not in TEMPLATES:
            raise RecipeError("hier.environment: a bug_reproduction task needs a known `function`; use `tasks`.")
        self._task, self._tests, self._turns, self._best, self._won = task, (), 0, 0, False
        return self._answer(self._texts["opening"])

    def step(self, action: str) -> StepResult:
        """Submit a test."""
        if self._won:
            return self._answer(self._texts["over"], valid=False)
        self._turns += 1
        words = self._options.spelling == "words"
        parsed = parse_verb(action, ("test", "assert"))
        arguments = TEMPLATES[self._task["function"]].arguments
        try:
            # A text without the verb may be a test all the same: `assert f(1) == 2` is nothing else.
            body = parsed[1] if parsed else action.strip()
            checks = read_test(body, arguments, self._options.max_checks, words)
        except BadTest as error:
            return self._judged(0, self._texts["invalid"].format(error), valid=False)
        self._tests = (*self._tests, told) if (told := "; ".join(map(str, checks))) not in self._tests else self._tests
        return self._verify(checks)

    def fork(self) -> BugReproductionEnvironment:
        """A copy; nothing is shared that could change."""
        copy = BugReproductionEnvironment(self._options, self._bench)
        copy._task, copy._tests, copy._turns = self._task, self._tests, self._turns
        copy._best, copy._won = self._best, self._won
        return copy

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the task that was reset; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.bug_reproduction.expert import BugReproductionExpert

        return BugReproductionExpert(self, self._options.spelling, rng, skip_stage, remember)

    def vocabulary(self) -> list[str]:
        """The words of the short spelling: signs, answers, and all that templates say."""
        if self._options.spelling != "words":
            return []
        told = [text for each in TEMPLATES.values() for text in (each.does, *(bug.when for bug in each.bugs))]
        return [
            *(*DIGITS, *SIGNS, *self._texts.values(), "test", "is", "try", "f of n and m and xs : | bug"),
            *(spell(text.replace(",", "")) for text in ("the result is wrong when", *told)),
        ]

    def _verify(self, checks: Sequence[Check]) -> StepResult:
        """Stages two and three."""
        template, values = TEMPLATES[self._task["function"]], self._task["values"]
        results = self._bench.run(template.source(values), checks)
        wrong = [(check, result) for check, result in zip(checks, results, strict=True) if result != PASSED]
        if wrong:
            return self._judged(1, self._texts["correct"].format(self._blame(*wrong[0])).strip())
        results = self._bench.run(template.source(values, self._task["bug"]), checks)
        if all(result == PASSED for result in results):
            return self._judged(2, self._texts["buggy"])
        self._won = True
        return self._judged(3, self._texts["won"])

    def _blame(self, check: Check, result: str) -> str:
        """Which check failed on the correct function, and as far as the options tell, how."""
        kind, _, value = result.partition(" ")
        if self._options.spelling == "words":
            return spell(value) if self._options.reveal and kind == "fail" else ""
        if kind == "raise":
            return f"f({check.arguments}) raises {value}"
        if kind != "fail":
            return f"f({check.arguments}) does not end ({kind})"
        return f"f({check.arguments}) is {value}" if self._options.reveal else f"f({check.arguments}) is something else"

    def _judged(self, passed: int, text: str, valid: bool = True) -> StepResult:
        """The answer to a test that got through `passed` stages."""
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
            info={"won": self._won, "score": scores[self._best], "tests": len(self._tests), **info},
        )

    def _anchor(self) -> str:
        """What the agent could know: the task, and the tests that it tried in any order."""
        known = repr((self._task.get("instruction"), sorted(self._tests)))
        return f"tests {len(self._tests)} | {hashlib.blake2b(known.encode(), digest_size=8).hexdigest()}"


_BENCHES: dict[BugReproductionOptions, Bench] = {}


def build(options: BugReproductionOptions) -> BugReproductionEnvironment:
    """A new environment; those of one process and one set of options share their results."""
    if options not in _BENCHES:
        try:
            run_python("")
        except SandboxError as error:
            raise RecipeError(
                f"hier.environment.name: bug_reproduction cannot run functions on this machine: {error}"
            ) from error
        _BENCHES[options] = Bench(options)
    return BugReproductionEnvironment(options, _BENCHES[options])
