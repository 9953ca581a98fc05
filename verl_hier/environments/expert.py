"""What an environment may offer for a cold start: an expert policy with subgoals, and its vocabulary."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol, runtime_checkable


class Expert(Protocol):
    """A scripted policy for the current episode of its environment.

    Attributes:
        subgoals: the plan in words; a planner should generate them one by one.
    """

    subgoals: tuple[str, ...]

    def advise(self, subgoal: int) -> str | None:
        """The next action towards a subgoal in the current state, None when the subgoal is reached."""
        ...

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """An action that a beginner would try for a subgoal, right or wrong; None if there is none.

        Demonstrations include some, followed by the expert's next action, so that a policy learns to recover.
        """
        ...


@runtime_checkable
class OffersExpert(Protocol):
    """An environment with an `expert` method, which is called after `reset`. The expert follows the state itself."""

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """An expert for the episode.

        Args:
            rng: decides which stages are skipped.
            skip_stage: probability of leaving out a needed stage, which gives demonstrations a known error.
            remember: whether later subgoals may use what was observed during earlier ones; False suits workers whose
                context starts anew at each subgoal.
        """
        ...


@runtime_checkable
class OffersVocabulary(Protocol):
    """An environment that can list words which a few episodes may not contain (the third apple of a room)."""

    def vocabulary(self) -> Iterable[str]:
        """Texts that together contain every word that the environment can use with its options."""
        ...
