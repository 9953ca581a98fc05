"""From credit to an update of the table of logits: verl's clipped policy loss, its gradient and Adam."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Credit
from verl_hier.graph.turn_table import TurnTable
from verl_hier.lab.world import World

Array = NDArray[Any]
WeightBy = Literal["sum", "token", "row", "episode"]


class Played(Protocol):
    """Turns that an earlier policy has played."""

    @property
    def state(self) -> Array:
        """(T,) state before each turn."""

    @property
    def action(self) -> Array:
        """(T,) what was chosen."""


@dataclass(frozen=True)
class Loss:
    """The policy loss.

    Attributes:
        clip: width of the clip range of the ratio of probabilities.
        epochs: optimiser steps on each batch.
        weight_by: what the sum of a batch is divided by: `token` by its tokens, as verl does; `row` and
            `episode` give each of these the same weight; `sum` by its episodes, which keeps the gradient of the mean
            return.
    """

    clip: float = 0.2
    epochs: int = 1
    weight_by: WeightBy = "token"


def advantages(table: TurnTable, credit: Credit, weight_by: WeightBy) -> Array:
    """(T,) what each turn's log-prob is multiplied by at the first optimiser step: credit times loss weight.

    A turn is a token here, so a mean over tokens is one over turns. Credit per step trains a shared turn once for each
    episode through it, as rows that repeat their shared tokens do.
    """
    count = len(table)
    trained = np.asarray(table["trained"], np.float64)
    if credit.weight is not None:
        trained = trained * (np.asarray(credit.weight) != 0)
    if credit.per == "step":
        times = np.bincount(table.step_turn, minlength=count).astype(np.float64)
        values = np.bincount(table.step_turn, credit.values, count) / np.maximum(times, 1)
    else:
        times, values = np.ones(count), np.asarray(credit.values, np.float64)
    if credit.tokens is not None:
        trained = trained * credit.tokens
    weight = trained * times
    if weight_by in ("row", "episode"):
        unit = np.asarray(table[weight_by])
        weight = weight / np.maximum(np.bincount(unit, weight), 1e-12)[unit]
    weight = weight / max(len(table.episodes["return"]) if weight_by == "sum" else weight.sum(), 1e-12)
    if credit.weight is not None:
        weight = weight * credit.weight
    if credit.factor is not None:
        values = values * credit.factor
    found: Array = weight * values
    return found


def loss_gradient(world: World, logits: Array, batch: Played, weighted: Array, old: Array, clip: float) -> Array:
    """(S, A) gradient of the negative clipped loss, so that an optimiser goes up along it.

    Args:
        world: the world.
        logits: (S, A) table of the policy.
        batch: what an earlier policy played.
        weighted: (T,) `advantages`.
        old: (T,) probability of each action under that policy.
        clip: see `Loss`.
    """
    policy = world.policy(logits)
    ratio = policy[batch.state, batch.action] / old
    clipped = np.where(weighted > 0, ratio > 1 + clip, ratio < 1 - clip)
    scale = np.where(clipped, 0.0, weighted * ratio)
    gradient = np.zeros_like(logits)
    np.add.at(gradient, (batch.state, batch.action), scale)
    found: Array = gradient - policy * np.bincount(batch.state, scale, len(logits))[:, None]
    return found


@dataclass
class Adam:
    """Adam on a table.

    Attributes:
        rate: learning rate.
    """

    rate: float
    _first: Array = field(default_factory=lambda: np.zeros(()))
    _second: Array = field(default_factory=lambda: np.zeros(()))
    _steps: int = 0

    def step(self, logits: Array, gradient: Array) -> Array:
        """The logits after a step up the gradient."""
        self._steps += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient**2
        first = self._first / (1 - 0.9**self._steps)
        second = self._second / (1 - 0.999**self._steps)
        found: Array = logits + self.rate * first / (np.sqrt(second) + 1e-8)
        return found
