"""A counter that has to reach a number: the smallest environment, with tasks of its own and an expert."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.splits import split_of
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EnvironmentSpec

MOVES = {"up": 1, "down": -1}


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.environment` in a recipe."""

    highest: int = 12
    """The highest number that a task has."""
    farthest: int = 4
    """How far apart the start and the goal of a task are at most."""


class CountTo(Environment):
    """The actions `up` and `down` move the counter by one; reaching the goal is worth 1 and ends the episode."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.goal = self.count = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task; deterministic in `task` and `seed`."""
        self.goal, self.count = int(task["goal"]), int(task["start"])
        return self._answer()

    def step(self, action: str) -> StepResult:
        """Apply an action; one that makes no sense changes nothing and is answered with `valid=False`."""
        move = MOVES.get(action.strip())
        if move is None:
            return replace(self._answer(), text="say up or down", valid=False)
        self.count += move
        return self._answer()

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> "Expert":
        """Who shows a small model the task before reinforcement learning; see `verl_hier.environments.expert`."""
        return Expert(self)

    def _answer(self) -> StepResult:
        won = self.count == self.goal
        return StepResult(
            text=f"counter: {self.count}",
            reward=float(won),
            done=won,
            admissible=tuple(MOVES),
            anchor=str(self.count),
            info={"won": won},
        )


class Expert:
    """Knows the way; a planner says `subgoals` one by one."""

    def __init__(self, environment: CountTo) -> None:
        self._environment = environment
        self.subgoals = (f"reach: {environment.goal}",)

    def advise(self, subgoal: int) -> str | None:
        """The next action, None when the goal is reached."""
        distance = self._environment.goal - self._environment.count
        return None if distance == 0 else "up" if distance > 0 else "down"

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """An action that a beginner would try."""
        return rng.choice(list(MOVES))


def tasks(options: Options, split: str) -> list[dict[str, Any]]:
    """The tasks of a split as JSON-able dictionaries; a hash of the task decides which split it belongs to."""
    numbers = range(options.highest + 1)
    pairs = [(a, b) for a in numbers for b in numbers if 0 < abs(a - b) <= options.farthest]
    return [
        {"instruction": f"count to: {goal}", "start": start, "goal": goal}
        for start, goal in pairs
        if split_of(f"from {start} to {goal}") == split
    ]


ENVIRONMENT = EnvironmentSpec(
    name="count_to",
    factory=CountTo,
    options=Options,
    summary="a counter that has to reach a number",
    source="example",
    tasks=tasks,
    fork="native",
    says_won=True,
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    """Registers `count_to`."""
    return ENVIRONMENT
