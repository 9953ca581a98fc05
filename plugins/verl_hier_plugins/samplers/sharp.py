"""SHARP: what follows again with the messages of one role masked (arXiv 2602.08335), docs/methods/sharp.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, at_least, fork_episodes, play_out, start_episodes

MASKED = "masked_return"


@dataclass(frozen=True)
class SHARPSamplerOptions:
    """Options of `sharp`. `actor_rollout_ref.rollout.n` is the number of episodes that are trained."""

    roles: tuple[str, ...] = ()
    """Roles whose messages are masked, one after the other; empty: each role that takes a turn."""
    placeholder: str = "(no message)"
    """What stands for a message that is masked."""
    replays: Count = 1
    """Masked episodes for each role of an episode, which only measure; their returns are averaged."""


class SHARPSampler(Sampler):
    """See the module."""

    def __init__(self, options: SHARPSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        complete = await play_out(rollout, start_episodes(rollout, rollout.n))
        places = [place for episode in complete for place in self._places(episode)]
        masked = await fork_episodes(rollout, places)
        await play_out(rollout, masked)
        found: dict[tuple[int, str], list[float]] = {}
        for place, fork in zip(places, masked, strict=False):
            # Where nobody speaks after the mask, the fork has no turn of its own, and the return of the shared ones.
            if fork.complete or fork.record.error == EndReason.IDLE:
                found.setdefault((place.episode.id, place.decision["masked"]), []).append(fork.ret)
        rollout.count("masked_episodes", sum(map(len, found.values())))
        for episode in complete:
            self._note(episode, found)

    def _places(self, episode: Episode) -> list[ForkPoint]:
        """Where the masked episodes leave an episode: before the first turn of each role."""
        first: dict[str, int] = {}
        for place, node in enumerate(episode.nodes):
            first.setdefault(node.role, place)
        options = self._options
        return [
            ForkPoint(episode, after, {"masked": role, "stand_ins": {role: options.placeholder}}, trained=False)
            for role, after in first.items()
            if not options.roles or role in options.roles
            for _ in range(options.replays)
        ]

    def _note(self, episode: Episode, found: Mapping[tuple[int, str], list[float]]) -> None:
        """Write on each turn what its episode returns without its role; without such an episode, its own return."""
        for node in episode.nodes:
            known = found.get((episode.id, node.role))
            node.extra[MASKED] = float(sum(known) / len(known) if known else episode.ret)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "sharp",
        SHARPSampler,
        SHARPSamplerOptions,
        summary="n episodes, and for each role of each one what follows when its messages are masked, to measure",
        source="arXiv 2602.08335 (reading notes)",
        episodes=at_least(2, "sharp sampler compares n episodes"),
        needs_fork=True,
        leaves_out=lambda options: options.roles,
        provides=(MASKED,),
    )
