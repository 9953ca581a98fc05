"""A scripted expert: its plan is an input that shows the bug, its action a test with the correct value."""

from __future__ import annotations

import random
from typing import Any

from verl_hier_plugins.environments.bug_reproduction.cases import Case, cases
from verl_hier_plugins.environments.bug_reproduction.checks import spell
from verl_hier_plugins.environments.bug_reproduction.environment import BugReproductionEnvironment


class BugReproductionExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    With the stage skipped, the plan is an input that does not show the bug, an error of strategy; with `remember` the
    right input is tried next. `mistake` gives wrong values, an error of implementation.
    """

    def __init__(
        self,
        environment: BugReproductionEnvironment,
        spelling: str,
        rng: random.Random,
        skip_stage: float = 0.0,
        remember: bool = True,
    ) -> None:
        self._environment = environment
        self._words = spelling == "words"
        task = environment.task
        found = [case for case in cases(task["function"], task["values"], task["bug"]) if self._sayable(case)]
        silent, shown = (next(case for case in found if case.shows is shows) for shows in (False, True))
        self._case = silent if rng.random() < skip_stage else shown
        self._next = shown if remember else self._case
        self.subgoals: tuple[str, ...] = (f"try {self._spelt(self._case.spelt)}",)

    def advise(self, subgoal: int) -> str | None:
        """The test of the planned input until it was submitted, then the test of an input that shows the bug."""
        if self._case.test in self._environment.tests:
            self._case = self._next
        test = self._case.test
        return None if test in self._environment.tests else f"test {self._spelt(test)}"

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """The right input with a wrong value."""
        right = self._case.correct
        wrong: Any = not right if isinstance(right, bool) else None
        if isinstance(right, int) and not isinstance(right, bool):
            wrong = self._case.buggy if isinstance(self._case.buggy, int) and self._case.shows else right + 1
        return None if wrong is None else f"test {self._spelt(self._test(wrong))}"

    def _test(self, value: Any) -> str:
        return f"f({self._case.spelt}) == {value!r}"

    def _sayable(self, case: Case) -> bool:
        return not self._words or not isinstance(case.correct, str)

    def _spelt(self, text: str) -> str:
        return spell(text) if self._words else text
