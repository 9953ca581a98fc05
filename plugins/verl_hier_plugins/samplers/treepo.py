"""Trees of segments of a fixed length, with fallback (arXiv 2508.17445 §3), docs/methods/treepo.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, at_least, discard_idle, fork_episodes, start_episodes


@dataclass(frozen=True)
class TreePOSamplerOptions:
    """Options of `treepo`. `actor_rollout_ref.rollout.n` is the width of the tree: its leaves (16 in the paper)."""

    segment_tokens: Count = 512
    """Longest segment; a path may branch after each. A segment also ends where its turn ends."""
    divergence: int = 2
    """Paths that one becomes after a segment, itself included, as long as leaves are missing. Where paths have ended in
    the same step, the others get their branches too."""
    first_divergence: int | None = 8
    """Most paths at the start; each task draws their number, from `divergence` up to this and to the width. Without it
    `divergence` paths start."""

    def __post_init__(self) -> None:
        if self.divergence < 2:
            raise ValueError(f"divergence must be at least 2, got {self.divergence}; 1 never branches")
        if self.first_divergence is not None and self.first_divergence < self.divergence:
            raise ValueError(
                f"first_divergence must be at least divergence = {self.divergence}, got {self.first_divergence}"
            )


class TreePOSampler(Sampler):
    """See the module."""

    def __init__(self, options: TreePOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        running = start_episodes(rollout, 1)
        places = [ForkPoint(episode, 0, {"why": "segment"}) for episode in running] * (self._first(rollout) - 1)
        running += await fork_episodes(rollout, places, beside=len(running))
        fallbacks = 0
        while running and fallbacks <= rollout.n:  # every fallback may meet the end of its budget or a broken world
            before = running
            running = await rollout.advance(before, self._options.segment_tokens)
            discard_idle(rollout, before)
            if running:
                ended = sum(episode.complete for episode in before)
                places = self._spread(running, _missing(rollout), ended)
            else:
                places = self._fall_back(rollout, _missing(rollout), fallbacks)
                fallbacks += 1
            running = running + await fork_episodes(rollout, places, beside=len(running))

    def _first(self, rollout: Rollout) -> int:
        """Paths at the start."""
        least = min(self._options.divergence, rollout.n)
        most = min(self._options.first_divergence or least, rollout.n)
        return rollout.rng("treepo", "first").randint(least, most)

    def _spread(self, running: list[Episode], missing: int, ended: int) -> list[ForkPoint]:
        """Forks at the ends of the running paths.

        Every path gets its first before any gets a second, so that an exhausted budget affects all alike.
        """
        forks = forks_of_paths(len(running), missing, ended, self._options.divergence)
        return [
            ForkPoint(episode, decision={"why": "segment"})
            for number in range(max(forks))
            for episode, most in zip(running, forks, strict=True)
            if number < most
        ]

    def _fall_back(self, rollout: Rollout, missing: int, number: int) -> list[ForkPoint]:
        """When every path has ended: forks at a random segment of the leaves in random order, `divergence` at each.

        Leaves that ended by themselves are chosen from; the start of the tree where there are none.
        """
        rng = rollout.rng("treepo", "fallback", number)
        complete = [episode for episode in rollout.episodes if episode.complete]
        finished = [episode for episode in complete if episode.record.status == "finished"]
        order = rng.sample(finished, len(finished))
        points = [ForkPoint(episode, rng.randrange(len(episode.path))) for episode in order]
        points = points or [ForkPoint(episode, 0) for episode in complete[:1]]
        places = [point.with_decision(why="fallback") for point in points for _ in range(self._options.divergence)]
        places = places[: max(missing, 0)]
        if places:
            rollout.count("fallbacks", len(places))
        return places


def forks_of_paths(running: int, missing: int, ended: int, divergence: int) -> list[int]:
    """How many forks each running path gets: all equally many, the last one also what is left over.

    Args:
        running: number of running paths, at least 1.
        missing: leaves of the tree that are not complete.
        ended: paths that became leaves in the same step, whose branches go to the others.
        divergence: paths that one becomes.
    """
    paths = max(min(missing, divergence * (running + ended)), running)
    equal, rest = divmod(paths, running)
    return [equal - 1] * (running - 1) + [equal - 1 + rest]


def _missing(rollout: Rollout) -> int:
    """Leaves of the tree that are not complete."""
    return rollout.n - sum(episode.complete for episode in rollout.episodes)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "treepo",
        TreePOSampler,
        TreePOSamplerOptions,
        summary="one tree of segments of a fixed length that falls back to earlier segments",
        source="arXiv 2508.17445 §3; multimodal-art-projection/TreePO vllm_rollout_spmd.py, run_treepo_train.sh",
        episodes=at_least(2, "treepo sampler grows a tree of n leaves"),
        needs_fork=True,
        needs_tokens=True,
    )
