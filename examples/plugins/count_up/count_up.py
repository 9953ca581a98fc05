"""A counter that has to reach a number: the smallest environment, with tasks of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EnvironmentSpec


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.environment` in a recipe."""

    tasks: int = 64
    """Tasks of the training split."""


class CountUp(Environment):
    """The action `up` raises the counter by one; reaching the goal is worth a reward of 1 and ends the episode."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task; deterministic in `task` and `seed`."""
        self._goal, self._count = int(task["goal"]), 0
        return self._answer()

    def step(self, action: str) -> StepResult:
        """Apply an action; one that makes no sense is answered with `valid=False`."""
        if action.strip() != "up":
            return StepResult(text="say up", valid=False, admissible=("up",), anchor=str(self._count))
        self._count += 1
        return self._answer()

    def _answer(self) -> StepResult:
        won = self._count == self._goal
        return StepResult(
            text=f"the counter is at {self._count}",
            reward=float(won),
            done=won,
            admissible=("up",),
            anchor=str(self._count),
            info={"won": won},
        )


def tasks(options: Options, split: str) -> list[dict[str, Any]]:
    """The tasks of a split as JSON-able dictionaries."""
    first = 0 if split == "train" else options.tasks
    goals = (2 + number % 3 for number in range(first, first + options.tasks))
    return [{"instruction": f"count to {goal}", "goal": goal} for goal in goals]


ENVIRONMENT = EnvironmentSpec(
    name="count_up",
    factory=CountUp,
    options=Options,
    summary="a counter that has to reach a number",
    source="example",
    tasks=tasks,
    can_fork=True,
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    """Registers `count_up`."""
    return ENVIRONMENT
