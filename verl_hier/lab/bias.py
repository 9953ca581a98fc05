"""Bias and variance of the gradient that a method estimates, against the exact one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.graph.turn_table import TurnTable
from verl_hier.lab.methods import Method
from verl_hier.lab.steps import Steps
from verl_hier.lab.update import WeightBy, loss_gradient
from verl_hier.lab.world import World

Array = NDArray[Any]
TWO_SIDED = 1.96
_EQUAL = 1e-9


@dataclass(frozen=True)
class Measured:
    """How a method's gradient compares with the exact one.

    Attributes:
        scale: length of the mean gradient along the exact one, which a learning rate makes up for.
        bias: length of what is left of the mean gradient after dividing by `scale`, as a share of the exact one.
        interval: 95 % confidence interval of `bias`.
        noise: variance of the gradient of one turn, after dividing by `scale`, as a multiple of the squared exact one.
        turns: turns of a batch.
        silent: share of the tasks whose episodes all have one return, so that a comparison says nothing.
        roles: scale and noise of the part of the gradient that belongs to each role, against its own exact part.
    """

    scale: float
    bias: float
    interval: tuple[float, float]
    noise: float
    turns: float
    silent: float = 0.0
    roles: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def unbiased(self) -> bool:
        """Whether the interval reaches zero."""
        return self.interval[0] <= 0.0


def gradients(
    world: World, method: Method, logits: Array, batches: int, weight_by: WeightBy, seed: int, tasks: int = 4
) -> tuple[Array, float, float]:
    """(B, S * A) gradients of batches that one policy plays, the mean number of turns of a batch, and the share of
    silent tasks."""
    steps = Steps(world, method, tasks, seed)
    policy = world.policy(logits)
    found, turns, silent = np.zeros((batches, logits.size)), 0, 0
    for number in range(batches):
        batch, weighted = steps.next(policy, weight_by)
        old = policy[batch.state, batch.action]
        found[number] = loss_gradient(world, logits, batch, weighted, old, np.inf).ravel()
        turns += batch.calls
        silent += silent_tasks(batch.table, tasks)
    return found, turns / batches, silent / (batches * tasks)


def silent_tasks(table: TurnTable, tasks: int) -> int:
    """Tasks whose trained episodes all have one return, or that have none."""
    trained = np.asarray(table["episodes.trained"], bool)
    group, returns = np.asarray(table["episodes.group"])[trained], np.asarray(table["episodes.return"])[trained]
    low, high = np.full(tasks, np.inf), np.full(tasks, -np.inf)
    np.minimum.at(low, group, returns)
    np.maximum.at(high, group, returns)
    return int((high - low < _EQUAL).sum())


def compare(
    found: Array, exact: Array, turns: float, silent: float = 0.0, roles: Mapping[str, Array] | None = None
) -> Measured | None:
    """Bias and variance of sampled gradients.

    The squared bias is estimated by the products of different batches, which sampling noise does not enlarge; its
    variance has a part of the noise and one of the bias itself. None where every gradient is zero.

    Args:
        found: (B, K) sampled gradients.
        exact: (K,) exact gradient, not zero.
        turns: turns of a batch.
        silent: see `Measured`.
        roles: (K,) bool, the part of the gradient of each role.
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
    low, high = squared - TWO_SIDED * spread, squared + TWO_SIDED * spread
    ends = (math.copysign(math.sqrt(abs(low)), low), math.sqrt(max(high, 0.0)))
    length = math.sqrt(square)
    return Measured(
        scale,
        math.sqrt(max(squared, 0.0)) / length,
        (ends[0] / length, ends[1] / length),
        float(np.trace(covariance)) * turns / square,
        turns,
        silent,
        {role: _part(found[:, mine], exact[mine], turns, square) for role, mine in (roles or {}).items()},
    )


def _part(found: Array, exact: Array, turns: float, whole: float) -> tuple[float, float]:
    """Scale and noise of a part of the gradient, whose squared length is `whole`; 0 and infinity where the part has
    nothing to learn, or nothing points along it."""
    square = float(exact @ exact)
    scale = float(found.mean(axis=0) @ exact) / square if square > _EQUAL * whole else 0.0
    noise = float(found.var(axis=0, ddof=1).sum()) * turns / (scale**2 * square) if scale else math.inf
    return scale, noise


def start(world: World, seed: int = 0, spread: float = 0.5) -> Array:
    """(S, A) normal logits, of the policy at which gradients are compared."""
    return np.random.default_rng(seed).normal(scale=spread, size=world.legal.shape)


def measure(
    world: World, method: Method, batches: int = 2000, weight_by: WeightBy = "sum", seed: int = 0, spread: float = 0.5
) -> Measured | None:
    """Compare a method's gradient with the exact one, at a policy whose logits are normal with a given spread.

    None where the method gives no credit to anything.
    """
    logits = start(world, seed, spread)
    found, turns, silent = gradients(world, method, logits, batches, weight_by, seed)
    owner = np.repeat(world.role, world.legal.shape[1])
    roles = {role: owner == number for number, role in enumerate(world.roles)} if len(world.roles) > 1 else {}
    return compare(found, world.gradient(logits).ravel(), turns, silent, roles)
