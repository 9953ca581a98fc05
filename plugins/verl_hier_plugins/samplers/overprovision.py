"""Stops when enough episodes are complete and leaves the others to a later step; docs/methods/overprovision.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import at_least, start_episodes
from verl_hier.rollout.budget import BudgetSpent


@dataclass(frozen=True)
class OverprovisionOptions:
    """Options of `overprovision`. `actor_rollout_ref.rollout.n` is the number of episodes that have to be complete."""

    launch: float = 2.0
    """Episodes launched, those that go on included, as a multiple of n, rounded up."""
    max_age: Count = 4
    """Trainer steps after its first token in which an episode may still go on; older ones are dropped."""

    def __post_init__(self) -> None:
        if self.launch <= 1:
            raise ValueError(f"launch must be above 1, got {self.launch}; without more episodes none is left over")


class Overprovision(Sampler):
    """See the module."""

    def __init__(self, options: OverprovisionOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        wanted = math.ceil(rollout.n * self._options.launch)
        resumed = self._resume(rollout, wanted)
        await rollout.gather(episode.ready() for episode in resumed)
        complete = [episode for episode in resumed if episode.complete]
        running = [episode for episode in resumed if not episode.over]
        if len(complete) < rollout.n:
            running += start_episodes(rollout, wanted - len(resumed))
        while running and len(complete) < rollout.n:
            going = await rollout.advance(running)
            complete += [episode for episode in running if episode.complete]
            running = going
        # The order of completion is that of turns, then of numbers; it does not depend on time.
        for episode in [*complete[rollout.n :], *running]:
            episode.discard(EndReason.LEFT_UNFINISHED)
            rollout.count(EndReason.LEFT_UNFINISHED)

    def _resume(self, rollout: Rollout, most: int) -> list[Episode]:
        """Episodes that earlier steps have left, oldest first, and that are not too old."""
        young = [c for c in rollout.unfinished if rollout.request.step - c.began <= self._options.max_age]
        if len(young) < len(rollout.unfinished):
            rollout.count("carried_too_old", len(rollout.unfinished) - len(young))
        resumed: list[Episode] = []
        try:
            for unfinished in young[:most]:
                resumed.append(rollout.resume(unfinished))
                rollout.count("resumed")
        except BudgetSpent:
            pass
        return resumed


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "overprovision",
        Overprovision,
        OverprovisionOptions,
        summary="launches more episodes than needed, stops when enough are complete, resumes the rest later",
        source="APRIL, arXiv 2509.18521; RLsys-Foundation/APRIL (mechanism: A; within a task: ours)",
        episodes=at_least(1, "overprovision sampler completes n episodes"),
    )
