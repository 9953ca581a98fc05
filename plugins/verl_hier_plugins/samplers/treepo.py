"""Trees of segments of a fixed length, with fallback (arXiv 2508.17445 §3), docs/methods/treepo.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, at_least, fork_episodes, start_episodes


@dataclass(frozen=True)
class TreePOSamplerOptions:
    """Options of `treepo`. `actor_rollout_ref.rollout.n` is the width of the tree: its leaves."""

    segment_tokens: int = 64
    """Longest segment; a path may branch after each. A segment also ends where its turn ends."""
    divergence: int = 2
    """Most branches of a path at one place, itself included; the start has as many."""

    def __post_init__(self) -> None:
        if self.segment_tokens < 1:
            raise ValueError(f"segment_tokens must be at least 1, got {self.segment_tokens}")
        if self.divergence < 2:
            raise ValueError(f"divergence must be at least 2, got {self.divergence}; 1 never branches")


class TreePOSampler(Sampler):
    """See the module."""

    def __init__(self, options: TreePOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        running = start_episodes(rollout, 1)
        running += await fork_episodes(rollout, self._spread(rollout, running, at_start=True), beside=len(running))
        fallbacks = 0
        while running:
            running = await rollout.advance(running, self._options.segment_tokens)
            missing = self._missing(rollout)
            if running:
                places = self._spread(rollout, running)
            else:
                places = self._fall_back(rollout, missing, fallbacks)
                fallbacks += 1
            running = running + await fork_episodes(rollout, places, beside=len(running))
            if fallbacks > rollout.n:
                break  # every fallback has met the end of its budget or a broken environment

    def _missing(self, rollout: Rollout) -> int:
        alive = [episode for episode in rollout.episodes if episode.complete or not episode.over]
        return rollout.n - len(alive)

    def _spread(self, rollout: Rollout, running: list[Episode], at_start: bool = False) -> list[ForkPoint]:
        """Missing leaves dealt out evenly over the running paths, each path gets its share at its end."""
        rounds = self._options.divergence - 1
        dealt = [episode for _ in range(rounds) for episode in running][: max(self._missing(rollout), 0)]
        return [ForkPoint(episode, 0 if at_start else None, {"why": "segment"}) for episode in dealt]

    def _fall_back(self, rollout: Rollout, missing: int, number: int) -> list[ForkPoint]:
        """Missing leaves from random earlier ends of segments, when every path has ended."""
        places: dict[int, ForkPoint] = {}
        for episode in rollout.episodes:
            for after, node in enumerate(episode.path if episode.complete else []):
                places.setdefault(rollout.graph.nodes[node].parent, ForkPoint(episode, after))
        if missing < 1 or not places:
            return []
        rng = rollout.rng("treepo", "fallback", number)
        order = list(places.values())
        rollout.count("fallbacks", missing)
        return [rng.choice(order).with_decision(why="fallback", draw=i, places=len(order)) for i in range(missing)]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "treepo",
        TreePOSampler,
        TreePOSamplerOptions,
        summary="one tree of segments of a fixed length that falls back to earlier segments",
        source="arXiv 2508.17445 §3 (confidence B)",
        episodes=at_least(2, "treepo sampler grows a tree of n leaves"),
        needs_fork=True,
    )
