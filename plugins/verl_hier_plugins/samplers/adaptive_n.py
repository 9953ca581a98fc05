"""Episodes are sampled in rounds, as long as a further one is worthwhile; docs/methods/adaptive_n.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import outcomes, play_out, start_episodes


# What one more episode of a task is worth: pure arithmetic on the outcomes so far.
def student_quantile(p: float, freedom: int) -> float:
    """The p-quantile, p in [0.5, 1), of Student's t with a whole number of degrees of freedom, at least 1.

    Inverts the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4 by bisection over the angle.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        angle = (low + high) / 2
        low, high = (angle, high) if _inside(angle, freedom) < 2 * p - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _inside(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) * tan(angle))."""
    odd = freedom % 2
    term, total = math.cos(angle) ** odd, 0.0
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= (k + 1) / (k + 2) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def half_width(spread: float, n: int, confidence: float) -> float:
    """Half the confidence interval of a mean of n outcomes with standard deviation `spread`: t * s / sqrt(n)."""
    return student_quantile((1 + confidence) / 2, n - 1) * spread / math.sqrt(n)


def uncertainty(returns: Sequence[float], confidence: float, exploration: float) -> float:
    """XRPO's priority of a task: the expected narrowing h(n) - h(n + 1) of the confidence interval by one more episode,
    plus a bonus that falls with n. It is infinite for fewer than two returns.

    Args:
        returns: of the complete episodes so far.
        confidence: of the interval, within (0, 1).
        exploration: weight of the bonus sqrt(log(1 + n) / n).
    """
    n = len(returns)
    if n < 2:
        return math.inf
    spread = stdev(returns)
    gain = half_width(spread, n, confidence) - half_width(spread, n + 1, confidence)
    return gain + exploration * math.sqrt(math.log(1 + n) / n)


def rebalanced(outcomes: Sequence[float], start: int) -> float:
    """Episodes with which a hard task weighs as much as one that is won half of the time does with `start`.

    In a group with success rate p, the mean absolute value of the normalised advantages is 2 sqrt(p (1 - p)). For p
    below one half, more episodes compensate for the smaller value. While nothing succeeds, the number is infinite.

    Args:
        outcomes: in [0, 1], of the complete episodes so far.
        start: episodes of a task that is not hard.
    """
    rate = fmean(outcomes) if outcomes else 0.0
    if rate >= 0.5:
        return float(start)
    return start / (2 * math.sqrt(rate * (1 - rate))) if rate > 0 else math.inf


@dataclass(frozen=True)
class AdaptiveNOptions:
    """Options of `adaptive_n`. `actor_rollout_ref.rollout.n` is the largest number of episodes of a task."""

    start: int = 4
    """Episodes that every task begins with, fewer than n."""
    step: Count = 2
    """Most episodes that a round adds; the rule is applied again after each round."""
    rule: Literal["uncertainty", "difficulty"] = "uncertainty"
    """Which tasks get more episodes: those whose mean return is uncertain (XRPO), or those that are seldom solved
    (DARS)."""
    threshold: NonNegative = 0.05
    """`uncertainty`: a task gets no more once its priority, in units of the return, is below this."""
    confidence: float = 0.95
    """`uncertainty`: confidence of the interval around the mean return."""
    exploration: NonNegative = 0.05
    """`uncertainty`: weight of the bonus for tasks with few episodes, whatever their returns."""

    def __post_init__(self) -> None:
        if self.start < 2:
            raise ValueError(f"start must be at least 2, got {self.start}; one return has no spread")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be within (0, 1), got {self.confidence}")


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
    """See the module."""

    def __init__(self, options: AdaptiveNOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        decided = rollout.expected = min(self._options.start, rollout.n)
        complete = await play_out(rollout, start_episodes(rollout, decided, round=0))
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
            made = start_episodes(rollout, more, round=number, worth=known, complete=len(complete))
            complete += await play_out(rollout, made)
            if len(made) < more:
                return  # the budget is spent

    def _worth(self, complete: list[Episode]) -> float:
        """The result of the rule: the priority of the task, or the number of episodes that it should have."""
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


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "adaptive_n",
        AdaptiveN,
        AdaptiveNOptions,
        summary="episodes in rounds, as long as a task is uncertain or hard, up to n",
        source="XRPO, arXiv 2510.06672 (priority: B, threshold: ours); DARS, arXiv 2508.13755 (C)",
        episodes=leaves_of,
        sees_outcomes=True,
    )
