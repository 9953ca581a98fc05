"""Bias and variance of the gradient that a method estimates, against the exact one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.lab.methods import Method
from verl_hier.lab.rollouts import play
from verl_hier.lab.update import WeightBy, advantages, loss_gradient
from verl_hier.lab.world import World

Array = NDArray[Any]
_TWO_SIDED = 1.96


@dataclass(frozen=True)
class Measured:
    """How a method's gradient compares with the exact one.

    Attributes:
        scale: length of the mean gradient along the exact one, which a learning rate makes up for.
        bias: length of what is left of the mean gradient after dividing by `scale`, as a share of the exact one.
        interval: 95 % confidence interval of `bias`.
        noise: variance of the gradient of one turn, after dividing by `scale`, as a multiple of the squared exact one.
        turns: turns of a batch.
    """

    scale: float
    bias: float
    interval: tuple[float, float]
    noise: float
    turns: float

    @property
    def unbiased(self) -> bool:
        """Whether the interval reaches zero."""
        return self.interval[0] <= 0.0


def gradients(
    world: World, method: Method, logits: Array, batches: int, weight_by: WeightBy, seed: int, tasks: int = 4
) -> tuple[Array, float]:
    """(B, S * A) gradients of batches that one policy plays, and the mean number of turns of a batch."""
    rng = np.random.default_rng([seed, *world.name.encode()])
    policy = world.policy(logits)
    found, turns = np.zeros((batches, logits.size)), 0
    for number in range(batches):
        batch = play(world, policy, tasks, method.shape, rng)
        weighted = advantages(batch.table, method.credit(batch.table), weight_by)
        old = policy[batch.state, batch.action]
        found[number] = loss_gradient(world, logits, batch, weighted, old, np.inf).ravel()
        turns += batch.calls
    return found, turns / batches


def compare(found: Array, exact: Array, turns: float) -> Measured | None:
    """Bias and variance of sampled gradients.

    The squared bias is estimated by the products of different batches, which sampling noise does not enlarge; its
    variance has a part of the noise and one of the bias itself. None where every gradient is zero.

    Args:
        found: (B, K) sampled gradients.
        exact: (K,) exact gradient, not zero.
        turns: turns of a batch.
    """
    if not found.any():
        return None
    count = len(found)
    mean, square = found.mean(axis=0), float(exact @ exact)
    scale = float(mean @ exact) / square
    errors = found / scale - exact
    total = errors.sum(axis=0)
    squared = float(total @ total - (errors**2).sum()) / (count * (count - 1))
    centred = errors - errors.mean(axis=0)
    covariance = centred.T @ centred / (count - 1)
    rest = total / count
    spread = math.sqrt(2 * float((covariance**2).sum()) / count**2 + 4 * float(rest @ covariance @ rest) / count)
    low, high = squared - _TWO_SIDED * spread, squared + _TWO_SIDED * spread
    ends = (math.copysign(math.sqrt(abs(low)), low), math.sqrt(max(high, 0.0)))
    length = math.sqrt(square)
    return Measured(
        scale,
        math.sqrt(max(squared, 0.0)) / length,
        (ends[0] / length, ends[1] / length),
        float(np.trace(covariance)) * turns / square,
        turns,
    )


def measure(
    world: World, method: Method, batches: int = 2000, weight_by: WeightBy = "sum", seed: int = 0, spread: float = 0.5
) -> Measured | None:
    """Compare a method's gradient with the exact one, at a policy whose logits are normal with a given spread.

    None where the method gives no credit to anything.
    """
    logits = np.random.default_rng(seed).normal(scale=spread, size=world.legal.shape)
    found, turns = gradients(world, method, logits, batches, weight_by, seed)
    return compare(found, world.gradient(logits).ravel(), turns)
