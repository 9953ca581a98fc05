"""Trees of episodes that branch after randomly drawn turns (arXiv 2509.21240), docs/methods/tree_grpo.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import (
    ForkPoint,
    fork_episodes,
    inner_fork_points,
    keep_leaves,
    play_out,
    start_episodes,
)


@dataclass(frozen=True)
class TreeGRPOSamplerOptions:
    """Options of `tree_grpo`. `actor_rollout_ref.rollout.n` is trees * leaves."""

    trees: int = 2
    """Trees a task (M); each begins with one whole episode."""
    nodes: int = 2
    """Places drawn in every tree and round (N), with replacement, from its start and its inner turns."""
    rounds: int = 1
    """Rounds of drawing and branching (L)."""
    leaves: int = 3
    """Episodes of every tree that are kept (K), drawn without replacement; at most 1 + rounds * nodes."""

    def __post_init__(self) -> None:
        if min(self.trees, self.nodes, self.rounds, self.leaves) < 1:
            raise ValueError("trees, nodes, rounds and leaves must be at least 1")
        if self.leaves > 1 + self.rounds * self.nodes:
            raise ValueError(
                f"a tree grows 1 + rounds * nodes = {1 + self.rounds * self.nodes} episodes, so leaves = {self.leaves} "
                "cannot be kept"
            )


def leaves_of(options: TreeGRPOSamplerOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when `n` is another number than trees * leaves.
    """
    if n != options.trees * options.leaves:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the tree_grpo sampler keeps {options.leaves} episodes of each of "
            f"{options.trees} trees, so n must be {options.trees * options.leaves}; got {n}."
        )
    return n


def sized(options: TreeGRPOSamplerOptions, n: int) -> TreeGRPOSamplerOptions:
    """As many trees where n is a multiple of them, else one; each keeps the leaves that it needs, and draws as many
    places in a round as that takes."""
    trees = options.trees if n % options.trees == 0 else 1
    leaves = n // trees
    return replace(options, trees=trees, leaves=leaves, nodes=max(1, ceil((leaves - 1) / options.rounds)))


class TreeGRPOSampler(Sampler):
    """See the module."""

    def __init__(self, options: TreeGRPOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        trunks = start_episodes(rollout, options.trees)
        await play_out(rollout, trunks)
        for number in range(options.rounds):
            drawn = [self._draw(rollout, trunk, number) for trunk in trunks]
            # Tree by tree in turns, so that a budget that ends cuts all trees alike.
            places = [place for draw in zip(*drawn, strict=True) for place in draw]
            await play_out(rollout, await fork_episodes(rollout, places))
        for trunk in trunks:
            self._keep(rollout, trunk)

    def _draw(self, rollout: Rollout, trunk: Episode, number: int) -> list[ForkPoint]:
        """N places of the trunk's tree, the start among those that can be drawn."""
        places = [ForkPoint(trunk, 0), *inner_fork_points(_tree(rollout, trunk))]
        rng = rollout.rng("tree_grpo", trunk.record.tree, "round", number)
        drawn = [rng.choice(places) for _ in range(self._options.nodes)]
        return [place.with_decision(round=number, draw=i, places=len(places)) for i, place in enumerate(drawn)]

    def _keep(self, rollout: Rollout, trunk: Episode) -> None:
        leaves = [episode for episode in _tree(rollout, trunk) if episode.complete]
        keep_leaves(rollout, leaves, self._options.leaves, rollout.rng("tree_grpo", trunk.record.tree, "keep"))


def _tree(rollout: Rollout, trunk: Episode) -> list[Episode]:
    return [episode for episode in rollout.episodes if episode.record.tree == trunk.record.tree]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "tree_grpo",
        TreeGRPOSampler,
        TreeGRPOSamplerOptions,
        summary="trees of whole episodes that branch after randomly drawn turns",
        source="arXiv 2509.21240 §3; AMAP-ML/Tree-GRPO (confidence A)",
        episodes=leaves_of,
        roots=lambda options, n: options.trees,
        needs_fork=True,
        sized=sized,
    )
