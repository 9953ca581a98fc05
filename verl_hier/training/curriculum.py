"""Curriculum by horizon: which tasks a step may train on. A function of the step, so resuming is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import accumulate
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.training.options import CurriculumOptions


class Curriculum:
    """Replaces the drawn tasks that are too long for the present stage."""

    def __init__(self, options: CurriculumOptions, tasks: Sequence[Mapping[str, Any]]) -> None:
        """
        Args:
            options: of the recipe, with at least one stage.
            tasks: all tasks of the data set; each has a `horizon`.

        Raises:
            RecipeError: when a task has no horizon, or a stage has no task.
        """
        horizons = [task.get("horizon") for task in tasks]
        if not all(isinstance(horizon, int) for horizon in horizons):
            raise RecipeError(
                "hier.curriculum.horizons: the tasks of this environment have no `horizon`; remove the "
                "curriculum, or let the environment's `tasks` add it."
            )
        self._ends = list(accumulate(options.steps))
        self._horizons = options.horizons
        self._admitted = {
            longest: [place for place, horizon in enumerate(horizons) if horizon is not None and horizon <= longest]
            for longest in options.horizons
        }
        for longest, admitted in self._admitted.items():
            if not admitted:
                raise RecipeError(f"hier.curriculum.horizons: no task has a horizon of {longest} or less.")

    def longest(self, step: int) -> int:
        """Longest task of a trainer step, counted from 1."""
        return self._horizons[sum(step > end for end in self._ends)]

    def admitted(self, step: int) -> int:
        """How many tasks a trainer step may train on."""
        return len(self._admitted[self.longest(step)])

    def admit(self, step: int, places: Sequence[int], used: Set[int] = frozenset()) -> list[int]:
        """For each drawn task the task or, where it is too long, another one, if possible one that was not drawn.

        Args:
            step: trainer step, counted from 1.
            places: numbers of the drawn tasks in the data set.
            used: tasks that the step has already.
        """
        admitted = self._admitted[self.longest(step)]
        short = set(admitted)
        taken = (short & set(places)) | used
        found: list[int] = []
        for place in places:
            if place not in short:
                start = place % len(admitted)
                turned = admitted[start:] + admitted[:start]
                place = next((other for other in turned if other not in taken), turned[0])
                taken.add(place)
            found.append(place)
        return found
