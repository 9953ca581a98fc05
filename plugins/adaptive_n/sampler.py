"""Episodes in rounds, as long as one more is worth it; docs/samplers/adaptive_n.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from verl_hier_plugins.adaptive_n.priority import rebalanced, uncertainty

from verl_hier.errors import RecipeError
from verl_hier.rollout import Sampler
from verl_hier.rollout.branching import outcomes, play, starts
from verl_hier.rollout.episode import Episode
from verl_hier.rollout.rollout import Rollout


@dataclass(frozen=True)
class AdaptiveNOptions:
    """Options of `adaptive_n`. `actor_rollout_ref.rollout.n` is the largest number of episodes of a task."""

    start: int = 4
    """Episodes that every task begins with, fewer than n."""
    step: int = 2
    """Episodes that a round adds, at most; the task is looked at again after each round."""
    rule: Literal["uncertainty", "difficulty"] = "uncertainty"
    """Which tasks get more: those whose mean return is little known (XRPO), or those that are seldom won (DARS)."""
    threshold: float = 0.05
    """`uncertainty`: a task gets no more once its priority, in units of the return, is below this."""
    confidence: float = 0.95
    """`uncertainty`: confidence of the interval around the mean return."""
    exploration: float = 0.05
    """`uncertainty`: weight of the bonus for tasks with few episodes, whatever their returns."""

    def __post_init__(self) -> None:
        if self.start < 2:
            raise ValueError(f"start must be at least 2, got {self.start}; one return has no spread")
        if self.step < 1:
            raise ValueError(f"step must be at least 1, got {self.step}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be within (0, 1), got {self.confidence}")
        if self.threshold < 0 or self.exploration < 0:
            raise ValueError("threshold and exploration must not be negative")


def leaves_of(options: AdaptiveNOptions, n: int) -> int:
    """Most leaves to train for one task.

    Raises:
        RecipeError: when no task could get more than the others.
    """
    if n <= options.start:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the adaptive_n sampler begins with {options.start} episodes and adds "
            f"more up to n, so n must be at least {options.start + 1}; got {n}."
        )
    return n


class AdaptiveN(Sampler):
    """See `plugins/adaptive_n`."""

    def __init__(self, options: AdaptiveNOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        decided = rollout.expected = min(self._options.start, rollout.n)
        complete = await play(rollout, starts(rollout, decided, round=0))
        number = 0
        while decided < rollout.n:
            worth = self._worth(complete)
            more = self._more(worth, decided, rollout.n)
            if not more:
                rollout.count("episodes_saved", rollout.n - decided)
                return
            number += 1
            decided += more
            rollout.expected = decided
            known = worth if math.isfinite(worth) else None
            made = starts(rollout, more, round=number, worth=known, complete=len(complete))
            complete += await play(rollout, made)
            if len(made) < more:
                return  # the budget is spent

    def _worth(self, complete: list[Episode]) -> float:
        """What the rule says of the task: its priority, or the number of episodes that it should have."""
        options = self._options
        if options.rule == "difficulty":
            return rebalanced(outcomes(complete), options.start)
        return uncertainty([episode.ret for episode in complete], options.confidence, options.exploration)

    def _more(self, worth: float, decided: int, n: int) -> int:
        """Episodes of the next round, 0 when the task has enough."""
        if self._options.rule == "difficulty":
            wanted = n if worth >= n else math.ceil(worth)
        else:
            wanted = n if worth >= self._options.threshold else decided
        return max(0, min(self._options.step, wanted - decided))
