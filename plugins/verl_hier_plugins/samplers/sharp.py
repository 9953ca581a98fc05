"""SHARP: what follows again with the messages of one role masked (arXiv 2602.08335), docs/methods/sharp.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.graph.nodes import RolloutGraph
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
        for fork in masked:
            fork.withhold()
        await play_out(rollout, masked)
        rollout.count("masked_episodes", sum(fork.complete for fork in masked))
        note_masked(rollout.graph)

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


def note_masked(graph: RolloutGraph) -> None:
    """Write on each turn what its episode returns with its role masked; without such an episode, its own return."""
    found: dict[tuple[int, str], list[float]] = {}
    for fork in graph.episodes:
        # Where nobody speaks after the mask, the fork has no turn of its own, and the return of the shared ones.
        if "masked" in fork.decision and (fork.status in ("finished", "truncated") or fork.error == EndReason.IDLE):
            found.setdefault((fork.source, fork.decision["masked"]), []).append(fork.ret)
    for episode in graph.complete():
        for node in (graph.nodes[number] for number in graph.path(episode.id)):
            if node.episode == episode.id:
                known = found.get((episode.id, node.role))
                node.extra[MASKED] = float(sum(known) / len(known) if known else episode.ret)


@hookimpl
def hier_graph_finished(graph: RolloutGraph, validate: bool) -> None:
    """The returns as they are once every reward is there."""
    if any("masked" in episode.decision for episode in graph.episodes):
        note_masked(graph)


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
