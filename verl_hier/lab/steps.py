"""The steps of a run: episodes are played, the schedule says who learns, and the estimator gives credit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.lab.methods import Method
from verl_hier.lab.rollouts import Batch, Shape, play
from verl_hier.lab.sampled import play_sampled
from verl_hier.lab.update import WeightBy, advantages
from verl_hier.lab.world import World
from verl_hier.training.schedule import Phase

Array = NDArray[Any]


class Steps:
    """One step after the other.

    Args:
        world: where.
        method: how.
        tasks: of each step.
        seed: with the name of the world, of all draws.
    """

    def __init__(self, world: World, method: Method, tasks: int, seed: int) -> None:
        self._world, self._method, self._tasks = world, method, tasks
        self._rng = np.random.default_rng([seed, *world.name.encode()])
        self._schedule = None if method.schedule is None else method.schedule()
        self._step = 0

    def next(self, policy: Array, weight_by: WeightBy) -> tuple[Batch, Array]:
        """What a policy plays in the next step, and (T,) what each turn's log-prob is multiplied by; see
        `update.advantages`."""
        self._step += 1
        schedule, method = self._schedule, self._method
        phase = Phase("joint") if schedule is None else schedule.phase(self._step)
        batch = self._play(policy, phase)
        table = batch.table
        if schedule is not None:
            schedule.table_ready(table, self._step)
            schedule.observe(self._step, {"hier/episodes/success": float(np.mean(table.episodes["success"]))})
        if not table["trained"].any():
            return batch, np.zeros(len(table))
        weighted = advantages(table, method.credit(table), weight_by)
        for level, weight in phase.weights:
            weighted = np.where(table["level"] == level, weight * weighted, weighted)
        return batch, weighted

    def _play(self, policy: Array, phase: Phase) -> Batch:
        world, shape = self._world, self._method.shape
        if not isinstance(shape, Shape):
            return play_sampled(world, policy, self._tasks, shape, self._rng, phase, self._step)
        batch = play(world, policy, self._tasks, shape, self._rng)
        learns = [phase.learns(world.roles[role], level) for role, level in zip(world.role, world.level, strict=True)]
        batch.table.turns["trained"] &= np.array(learns)[batch.state]
        return batch
