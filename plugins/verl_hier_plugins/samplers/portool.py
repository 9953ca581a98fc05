"""Trajectories that fork at every turn and keep their number (arXiv 2510.26020), docs/methods/portool.md."""

from __future__ import annotations

import random
from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, at_least, fork_episodes, keep_only, start_episodes


@dataclass(frozen=True)
class PORToolSamplerOptions:
    """Options of `portool`. `actor_rollout_ref.rollout.n` trajectories are kept in every round."""

    forks: int = 2
    """Candidates for the next turn of every open trajectory (f)."""

    def __post_init__(self) -> None:
        if self.forks < 2:
            raise ValueError("forks must be at least 2; with one candidate a turn nothing branches")


class PORToolSampler(Sampler):
    """See the module."""

    def __init__(self, options: PORToolSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        running = start_episodes(rollout, rollout.n)
        done = number = 0
        while running:
            candidates = running if number == 0 else running + await self._fork(rollout, running, number)
            alive = await advance_turn(rollout, candidates)
            kept = _choose(alive, rollout.n - done, rollout.rng("portool", number))
            keep_only(rollout, alive, kept, EndReason.NOT_CHOSEN)
            done += sum(episode.complete for episode in kept)
            running = [episode for episode in kept if not episode.over]
            number += 1

    async def _fork(self, rollout: Rollout, running: list[Episode], number: int) -> list[Episode]:
        """The other candidates of a round, of each trajectory in turn, so that a budget affects all alike."""
        places = [
            ForkPoint(episode, decision={"round": number})
            for _ in range(self._options.forks - 1)
            for episode in running
        ]
        return await fork_episodes(rollout, places, beside=len(running))


def _choose(episodes: list[Episode], number: int, rng: random.Random) -> list[Episode]:
    """`number` of them at random, in their order; all when there are no more."""
    if len(episodes) <= number:
        return episodes
    chosen = rng.sample(range(len(episodes)), number)
    return [episodes[place] for place in sorted(chosen)]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "portool",
        PORToolSampler,
        PORToolSamplerOptions,
        summary="n trajectories that fork at every turn; a random n of the candidates go on",
        source="arXiv 2510.26020 §3 (confidence B)",
        episodes=at_least(2, "portool sampler keeps n trajectories and compares candidates among them"),
        needs_fork=True,
    )
