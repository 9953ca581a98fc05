"""What an environment may offer for a cold start: an expert with subgoals, and the words of its language."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol, runtime_checkable


class Expert(Protocol):
    """A scripted policy for the episode that its environment is in.

    Attributes:
        subgoals: the plan, in words; what a planner should say, one by one.
    """

    subgoals: tuple[str, ...]

    def advise(self, subgoal: int) -> str | None:
        """The next action towards a subgoal in the environment's present state, None when it is reached."""
        ...

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """An action that a beginner would try for a subgoal, right or wrong; None if there is none.

        Demonstrations hold some, followed by the expert's way on, so that a policy learns not to repeat its mistakes.
        """
        ...


@runtime_checkable
class OffersExpert(Protocol):
    """An environment with an `expert` method. Call it after `reset`; it follows the environment's state itself."""

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """An expert for the episode.

        Args:
            rng: decides what is skipped.
            skip_stage: chance to leave out a stage that the goal needs, so that demonstrations have a known error.
            remember: whether later subgoals may use what earlier ones saw; False suits workers whose context starts
                afresh at each subgoal.
        """
        ...


@runtime_checkable
class OffersVocabulary(Protocol):
    """An environment that can name words which a few walks may not meet (the third apple of a room)."""

    def vocabulary(self) -> Iterable[str]:
        """Texts that together hold every word of the environment with its options."""
        ...
