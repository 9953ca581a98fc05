"""Self-imitation in a world of the lab: what the product keeps, and how its age biases the gradient.

A row is an episode: its prompt is empty, and its response has two numbers for each turn, a state and what was chosen
there, of which the second is trained. What is kept, when it trains and with which advantage is `GoodEpisodes` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verl_hier.lab.bias import Measured, compare
from verl_hier.lab.methods import Method
from verl_hier.lab.rollouts import Batch
from verl_hier.lab.steps import Steps
from verl_hier.lab.update import Adam, loss_gradient
from verl_hier.lab.world import World
from verl_hier.training.options import SelfImitationOptions
from verl_hier.training.self_imitation import (
    Baselines,
    GoodEpisodes,
    KeptRow,
    even_steps,
    loss_weights,
    weight_at,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class KeptTurns:
    """The turns of kept rows; see `update.Played`.

    Attributes:
        state, action: (T,) where, and what was chosen.
        chance: (T,) probability of that under the policy that chose it.
        weighted: (T,) what each turn's log-prob is multiplied by.
    """

    state: Array
    action: Array
    chance: Array
    weighted: Array

    @classmethod
    def of(cls, rows: Sequence[KeptRow], advantages: Sequence[Array], weight: float = 1.0) -> KeptTurns:
        """The mean over the turns of rows, as verl takes it over tokens.

        Args:
            rows: at least one.
            advantages: of the tokens of each.
            weight: of the whole.
        """
        spoken = [row.mask > 0 for row in rows]
        states = [row.response[np.flatnonzero(mine) - 1] for row, mine in zip(rows, spoken, strict=True)]
        actions = [row.response[mine] for row, mine in zip(rows, spoken, strict=True)]
        logs = [row.log_probs[mine] for row, mine in zip(rows, spoken, strict=True)]
        weights = loss_weights(rows, weight)
        parts = [each * found for each, found in zip(weights, advantages, strict=True)]
        weighted = np.concatenate([part[mine] for part, mine in zip(parts, spoken, strict=True)]).astype(np.float64)
        chance = np.exp(np.concatenate(logs).astype(np.float64))
        return cls(np.concatenate(states), np.concatenate(actions), chance, weighted / len(weighted))


def rows_of(batch: Batch, weighted: Array, step: int) -> list[KeptRow]:
    """The episodes of a batch as rows.

    Args:
        batch: what was played.
        weighted: (T,) credit of each turn, with its loss weight.
        step: in which it was played.
    """
    table = batch.table
    episode, turn = np.asarray(table.step_episode), np.asarray(table.step_turn)
    scores, logs = np.asarray(table["episodes.return"]), np.asarray(table["tokens.logprob"])
    found = []
    places = np.searchsorted(episode[order := np.argsort(episode, kind="stable")], np.arange(1, len(scores)))
    for number, mine in enumerate(np.split(turn[order], places)):
        response = np.stack([batch.state[mine], batch.action[mine]], axis=1).ravel()
        twice = np.repeat(mine, 2)
        mask = np.tile([0, 1], len(mine)) * np.asarray(table["trained"], np.int8)[twice]
        one = np.ones(len(response), np.float32)
        found.append(
            KeptRow(step, float(scores[number]), response[:0], response, mask, logs[twice], weighted[twice], one)
        )
    return found


def baselines_of(batch: Batch, step: int) -> Baselines:
    """Of the tasks of a batch."""
    return Baselines.of(step, batch.table["episodes.group"], batch.table["episodes.return"])


class Imitation:
    """Optimiser steps on kept rows behind those of each step.

    Args:
        world: where.
        options: of `hier.self_imitation`.
        clip: width of the clip range of the ratio of probabilities.
        seed: of the draws.
        corrected: whether that ratio is taken at all; otherwise kept rows count as if the policy of now had made them.
    """

    def __init__(
        self, world: World, options: SelfImitationOptions, clip: float, seed: int, corrected: bool = True
    ) -> None:
        self._world, self._options, self._clip, self._seed = world, options, clip, seed
        self._corrected = corrected
        self._good = GoodEpisodes(options)
        self._step = 0

    def update(self, logits: Array, adam: Adam, batch: Batch, weighted: Array) -> tuple[Array, int]:
        """Train on kept rows, if there are enough, and keep the good ones of a step.

        Args:
            logits: after the step's own update.
            adam: of the policy.
            batch: of the step.
            weighted: its credit.

        Returns:
            the logits, and how many optimiser steps there were.
        """
        self._step += 1
        rows = self._good.due(self._step, self._seed)
        steps, size = even_steps(len(rows), len(batch.table["episodes.return"]), 1)
        weight = weight_at(self._step, self._options)
        made = steps if rows else 0
        for number in range(made):
            part = rows[number * size : (number + 1) * size]
            kept = KeptTurns.of(part, self._good.advantages(part), weight)
            chance = kept.chance if self._corrected else self._world.policy(logits)[kept.state, kept.action]
            gradient = loss_gradient(self._world, logits, kept, kept.weighted, chance, self._clip)
            logits = adam.step(logits, gradient)
        self._good.add(rows_of(batch, weighted, self._step), baselines_of(batch, self._step))
        return logits, made


Correction = Literal["clipped", "ratio", "none"]
CORRECTIONS: tuple[Correction, ...] = ("clipped", "ratio", "none")
"""What old rows are multiplied by: the ratio of probabilities, clipped or not, or nothing."""
Chosen = Literal["all", "good"]
CHOSEN: tuple[Chosen, ...] = ("all", "good")
"""Which rows give the gradient: every row, or those with a positive advantage."""
RECENT = 6
"""Policies whose groups make the baseline."""
TASKS = 8


@dataclass(frozen=True)
class Aged:
    """The gradient of rows that are some steps old, against the exact one of the policy of now.

    Attributes:
        age: in steps.
        distance: mean over their turns of r - 1 - log r, with the ratio r of the policy of now to theirs.
        outside: share of the turns whose ratio is outside of the clip range.
        found: bias, scale and noise by which rows and which correction; None where every gradient is zero.
    """

    age: int
    distance: float
    outside: float
    found: dict[tuple[Chosen, Correction], Measured | None]


def by_age(
    world: World, method: Method, ages: Sequence[int], *, steps: int, batches: int, seed: int, rate: float = 0.05
) -> list[Aged]:
    """How the age of rows biases the gradient that they give.

    A run learns for some steps. Then the policies that it has had play again, and their rows give the gradient of the
    last one: the returns minus the median of the mean returns of recent groups, for every row and for good ones alone.

    Args:
        world: where.
        method: how the run learns.
        ages: in steps, at most `steps`.
        steps: of the run.
        batches: that each policy plays again.
        seed: of the run and of what is played again.
        rate: learning rate of Adam.
    """
    run, logits, adam, past = Steps(world, method, TASKS, seed), np.zeros(world.legal.shape), Adam(rate), []
    for _ in range(steps):
        past.append(logits)
        policy = world.policy(logits)
        batch, weighted = run.next(policy, method.loss.weight_by)
        old = policy[batch.state, batch.action]
        logits = adam.step(logits, loss_gradient(world, logits, batch, weighted, old, method.loss.clip))
    past.append(logits)
    good = GoodEpisodes(SelfImitationOptions(rows=1, fill=0.0, limit=1, warmup=0))
    recent = Steps(world, method, TASKS, seed + 1)
    for number, each in enumerate(past[-RECENT:]):
        good.add([], baselines_of(recent.next(world.policy(each), "sum")[0], number))
    return [_aged(world, method, (past[-1 - age], logits), age, good, batches, seed + 2 + age) for age in ages]


def _aged(
    world: World, method: Method, logits: tuple[Array, Array], age: int, good: GoodEpisodes, batches: int, seed: int
) -> Aged:
    """Of rows of one age, whose policy and the policy of now have these logits."""
    then, now, clip = world.policy(logits[0]), logits[1], method.loss.clip
    steps, turns, logs = Steps(world, method, TASKS, seed), 0, []
    names = [(which, correction) for which in CHOSEN for correction in CORRECTIONS]
    found = {name: np.zeros((batches, now.size)) for name in names}
    for number in range(batches):
        batch, _ = steps.next(then, "sum")
        turns += batch.calls
        rows = rows_of(batch, np.ones(len(batch.table)), 1)
        for which in CHOSEN:
            chosen = [row for row in rows if which == "all" or row.score > good.baseline]
            if not chosen:
                continue
            kept = KeptTurns.of(chosen, good.advantages(chosen))
            # A sum over episodes, whose gradient is that of the mean return where nothing is chosen.
            weighted = kept.weighted * len(kept.weighted) / len(rows)
            present = world.policy(now)[kept.state, kept.action]
            logs.append(np.log(present / kept.chance) if which == "all" else np.zeros(0))
            for correction in CORRECTIONS:
                chance = present if correction == "none" else kept.chance
                width = clip if correction == "clipped" else np.inf
                found[which, correction][number] = loss_gradient(world, now, kept, weighted, chance, width).ravel()
    log = np.concatenate(logs)
    exact = world.gradient(now).ravel()
    return Aged(
        age,
        float(np.mean(np.exp(log) - 1 - log)),
        float(np.mean(np.abs(np.exp(log) - 1) > clip)),
        {name: compare(each, exact, turns / batches) for name, each in found.items()},
    )
