"""A world for tests: positions on a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult


class Line(Environment):
    """`right` and `left` move, and reaching the goal wins; any other action is invalid and costs 0.1."""

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`; the goal is 3 unless the task says another `goal`."""
        self._goal, self._at = int(task.get("goal", 3)), 0
        return self._answer(True)

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        move = {"right": 1, "left": -1}.get(action.strip().lower(), 0)
        self._at = max(0, self._at + move)
        return self._answer(move != 0)

    def _answer(self, valid: bool) -> StepResult:
        won = self._at >= self._goal
        return StepResult(
            f"at {self._at}",
            reward=float(won) - 0.1 * (not valid),
            done=won,
            valid=valid,
            admissible=("right", "left"),
            anchor=str(self._at),
            info={"won": won},
        )
