"""Worlds for tests: positions on a line."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
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


class Fragile(Line):
    """Breaks under some of the words."""

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        if action == "left":
            raise RuntimeError("the world broke")
        return super().step(action)


class Lost(Line):
    """Cannot be started."""

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`."""
        raise RuntimeError("the world is not there")


class Graded(Line):
    """The same positions, each of which is worth something."""

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        answer = super().step(action)
        worth = random.Random(f"{answer.text} after {action}").random()
        return replace(answer, reward=worth, info={**answer.info, "won": answer.done and worth > 0.5})


class Ungraded(Line):
    """The same positions, and nobody who says how good it is to be there."""

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        answer = super().step(action)
        said = {name: value for name, value in answer.info.items() if name != "won"}
        return replace(answer, reward=0.0, rewards={}, info=said)
