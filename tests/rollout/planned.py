"""An episode of a planner and an executor in the corridor, for workers that can tell it in their own way."""

from __future__ import annotations

import asyncio

from verl_hier.host.specs import NoOptions
from verl_hier.rollout.transcript import Transcript
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.planner_executor import PlannerExecutor, PlannerExecutorOptions

from .conftest import Corridor


def planned() -> Transcript:
    """Two subgoals: one step, then two."""
    turns = iter(["one ; two", "right", "<sub_done>", "right", "right"])
    kept: list[Transcript] = []

    class Keep(Independent):
        async def sample(self, rollout):
            await super().sample(rollout)
            kept.append(Transcript.of(rollout.episodes[0]))

    asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(3),
            worker=lambda: PlannerExecutor(PlannerExecutorOptions()),
            sampler=Keep(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
        )
    )
    return kept[0]
