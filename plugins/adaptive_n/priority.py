"""What one more episode of a task is worth: pure arithmetic on the outcomes so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


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
    """XRPO's priority of a task: h(n) - h(n + 1), which one more episode is expected to narrow the interval by, and a
    bonus that falls with n. Infinite for fewer than two returns.

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

    In a group with success rate p the sizes of the normalised advantages add up to 2 sqrt(p (1 - p)) an episode. For p
    below one half that is made up for by more episodes; infinitely many while nothing succeeds.

    Args:
        outcomes: in [0, 1], of the complete episodes so far.
        start: episodes of a task that is not hard.
    """
    rate = fmean(outcomes) if outcomes else 0.0
    if rate >= 0.5:
        return float(start)
    return start / (2 * math.sqrt(rate * (1 - rate))) if rate > 0 else math.inf
