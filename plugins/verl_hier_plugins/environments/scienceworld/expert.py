"""The world's own solution as an expert, which knows no way back from a detour."""

from __future__ import annotations

import random

from verl_hier_plugins.environments.scienceworld.environment import ScienceworldEnvironment

HARMLESS = ("look around", "inventory", "task")
"""Actions that take no time and change nothing."""
ON_THE_WAY = ("open", "go", "teleport", "wait", *HARMLESS)
"""Beginnings of actions that are no subgoals of their own."""


class ScienceExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    Its subgoals are the actions of the solution other than walking, opening and waiting: `focus on dove`.
    """

    def __init__(self, environment: ScienceworldEnvironment) -> None:
        self._environment = environment
        self._solution = [action for action in environment.world.solution() if action not in HARMLESS]
        last = len(self._solution) - 1
        self._ends = [n for n, said in enumerate(self._solution) if n == last or not said.startswith(ON_THE_WAY)]
        self.subgoals: tuple[str, ...] = tuple(self._solution[end] for end in self._ends)

    def advise(self, subgoal: int) -> str | None:
        """The next action; None when the subgoal is reached, or something else was done before."""
        done = [said for said in self._environment.path if said not in HARMLESS]
        if done != self._solution[: len(done)] or len(done) > self._ends[subgoal]:
            return None
        return self._solution[len(done)]

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """None: the solution's actions are names of the state that they were found in."""
        return None
