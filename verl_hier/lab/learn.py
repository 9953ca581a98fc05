"""Train the table of a world with a method, within a budget of turns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from verl_hier.lab.imitation import Imitation
from verl_hier.lab.methods import Method
from verl_hier.lab.steps import Steps
from verl_hier.lab.update import Adam, loss_gradient
from verl_hier.lab.world import World
from verl_hier.training.options import SelfImitationOptions

POINTS = 20
"""Points of a curve."""


@dataclass(frozen=True)
class Setting:
    """How long and how fast a run learns.

    Attributes:
        turns: budget of turns that are played; each is a token and a call of the world.
        tasks: tasks of a batch.
        rate: learning rate of Adam.
    """

    turns: int = 40_000
    tasks: int = 8
    rate: float = 0.05


@dataclass(frozen=True)
class Curve:
    """What a run reached; every number is exact for the policy that it had then.

    Attributes:
        turns: turns played at each point.
        regret: distance to the best policy, 1 for a policy that chooses at random.
        solved: probability that the task is solved.
        updates: optimiser steps of the whole run.
        spawned: conversations of further agents that an episode begins; empty where no action begins one.
    """

    turns: list[int]
    regret: list[float]
    solved: list[float]
    updates: int
    spawned: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def learn(
    world: World,
    method: Method,
    seed: int,
    setting: Setting,
    imitation: SelfImitationOptions | None = None,
    corrected: bool = True,
) -> Curve:
    """One run from a policy that chooses at random; the same arguments give the same curve.

    Args:
        world: where.
        method: how.
        seed: of the run.
        setting: how long and how fast.
        imitation: of good episodes of earlier steps, behind each step's own update; they cost no turns.
        corrected: see `Imitation`.
    """
    steps = Steps(world, method, setting.tasks, seed)
    logits = np.zeros(world.legal.shape)
    adam, loss = Adam(setting.rate), method.loss
    found: dict[str, list[Any]] = {"turns": [], "regret": [], "solved": [], "spawned": []}
    imitating = None if imitation is None else Imitation(world, imitation, loss.clip, seed, corrected)
    played = updates = 0

    def note(policy: Any) -> None:
        found["turns"].append(played)
        found["regret"].append(round(world.regret(policy), 6))
        found["solved"].append(round(world.solved(policy), 6))
        if world.spawns.any():
            found["spawned"].append(round(world.counting.expected_return(policy), 6))

    note(world.policy(logits))
    while played < setting.turns:
        policy = world.policy(logits)
        batch, weighted = steps.next(policy, loss.weight_by)
        played += batch.calls
        old = policy[batch.state, batch.action]
        for _ in range(loss.epochs):
            logits = adam.step(logits, loss_gradient(world, logits, batch, weighted, old, loss.clip))
            updates += 1
        if imitating is not None:
            logits, more = imitating.update(logits, adam, batch, weighted)
            updates += more
        if played >= len(found["turns"]) * setting.turns / POINTS:
            note(world.policy(logits))
    return Curve(updates=updates, **found)
