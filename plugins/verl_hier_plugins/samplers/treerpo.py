"""TreeRPO: a full tree of segments of a fixed length (arXiv 2506.05183), docs/methods/treerpo.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, fork_episodes, play_out, reach, start_episodes


@dataclass(frozen=True)
class TreeRPOSamplerOptions:
    """Options of `treerpo`. `actor_rollout_ref.rollout.n` is children ** depth, the leaves of a full tree."""

    children: int = 8
    """Segments that follow each segment, and the task (N)."""
    depth: int = 3
    """Segments of a path; the last one goes on to the end of the episode."""
    segment_tokens: int = 384
    """Sampled tokens of a segment, over turns."""

    def __post_init__(self) -> None:
        if self.children < 2 or self.depth < 1 or self.segment_tokens < 1:
            raise ValueError("children must be at least 2, depth and segment_tokens at least 1")


def leaves_of(options: TreeRPOSamplerOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when `n` is another number than those of a full tree.
    """
    full = options.children**options.depth
    if n != full:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the treerpo sampler grows {options.children} children of each segment, "
            f"{options.depth} deep, so n must be {full}; got {n}."
        )
    return n


class TreeRPOSampler(Sampler):
    """See the module."""

    def __init__(self, options: TreeRPOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        paths = start_episodes(rollout, options.children)
        leaves = len(paths)
        for level in range(1, options.depth):
            await reach(rollout, paths, level * options.segment_tokens)
            running = [path for path in paths if not path.over]
            places = [ForkPoint(path, decision={"depth": level}) for path in running] * (options.children - 1)
            forks = await fork_episodes(rollout, places, beside=len(running))
            paths, leaves = running + forks, leaves + len(forks)
        # Episodes that end within a segment have no children, so the tree has fewer leaves than a full one.
        rollout.expected = min(rollout.expected, leaves)
        await play_out(rollout, paths)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "treerpo",
        TreeRPOSampler,
        TreeRPOSamplerOptions,
        summary="a full tree of segments of a fixed length, each with the same number of children",
        source="arXiv 2506.05183 (reading notes)",
        episodes=leaves_of,
        needs_fork=True,
        needs_tokens=True,
    )
