"""Means over episodes and tasks, with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
_Z = 1.959963984540054  # of the normal distribution, for CONFIDENCE on two sides


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval.

    Attributes:
        mean: of the episodes.
        low, high: ends of the interval; NaN where one task alone says nothing about the others.
    """

    mean: float
    low: float
    high: float


def share(groups: Sequence[Sequence[float]]) -> Estimate:
    """A share of episodes with Wilson's interval (E. B. Wilson, JASA 22, 1927).

    Several episodes of one task are not independent. The number of episodes in the formula is therefore divided by the
    design effect (L. Kish, Survey Sampling, 1965): the variance of the mean over tasks by that of as many independent
    episodes, at least 1. Where all episodes agree, so that it cannot be estimated, the number of tasks is taken. The
    interval of a single task is about that task alone.

    Args:
        groups: for each task 1 or 0 for each of its episodes.
    """
    values = [value for group in groups for value in group]
    n, mean = len(values), sum(values) / len(values)
    n_effective = float(n)
    if len(groups) > 1:
        independent = variance([[value] for value in values], mean)
        n_effective = n / max(1.0, variance(groups, mean) / independent) if independent else float(len(groups))
    return _wilson(mean, n_effective)


def of_tasks(shares: Sequence[float], episodes: int) -> Estimate:
    """A mean of expected shares, one of each task, with Wilson's interval.

    The number of episodes in the formula is that of independent ones with the variance of this mean, as in `share`, and
    at most `episodes`. Where all tasks agree, the number of tasks is taken.

    Args:
        shares: of each task, from 0 to 1.
        episodes: draws without an episode in common that the shares are means of.
    """
    mean = sum(shares) / len(shares)
    n_effective = float(episodes)
    if len(shares) > 1:
        spread = variance([[value] for value in shares], mean)
        independent = mean * (1 - mean) / max(episodes - 1, 1)
        n_effective = episodes / max(1.0, spread / independent) if spread and independent else float(len(shares))
    return _wilson(mean, n_effective)


def _wilson(mean: float, n: float) -> Estimate:
    spread = _Z**2 / n
    centre = (mean + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(max(0.0, mean * (1 - mean)) / n + spread / (4 * n))
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half))


def average(groups: Sequence[Sequence[float]]) -> Estimate:
    """A mean over episodes with the interval of the normal distribution; tasks are independent, their episodes not.

    Args:
        groups: for each task the numbers of its episodes.
    """
    values = [value for group in groups for value in group]
    mean = sum(values) / len(values)
    half = _Z * math.sqrt(variance(groups, mean)) if len(groups) > 1 else math.nan
    return Estimate(mean, mean - half, mean + half)


def variance(groups: Sequence[Sequence[float]], mean: float) -> float:
    """Variance of the mean over all episodes of two or more independent tasks: that of a ratio of sums over tasks."""
    n = sum(map(len, groups))
    squares = sum((sum(group) - len(group) * mean) ** 2 for group in groups)
    return len(groups) / (len(groups) - 1) * squares / n**2
