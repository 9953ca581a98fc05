"""Entropy-guided trees (EPTree, arXiv 2506.11902 §3.2), docs/methods/treerl.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, fork_episodes, keep_leaves, place_before, play_out, start_episodes

Token = tuple[int, int]
"""An action token: the episode that sampled it, and its number among the action tokens of the path."""


@dataclass(frozen=True)
class TreeRLSamplerOptions:
    """Options of `treerl`. `actor_rollout_ref.rollout.n` is the number of leaves that are kept (16 in the paper)."""

    trees: int = 6
    """Trees for each task (m); each begins with one whole episode."""
    tokens: int = 2
    """Tokens of every tree at which branches begin in a round (n): those with the highest entropy."""
    rounds: int = 1
    """Rounds of branching (l)."""
    branches: int = 2
    """Branches that begin at each of these tokens (t)."""

    def __post_init__(self) -> None:
        if min(self.trees, self.tokens, self.rounds, self.branches) < 1:
            raise ValueError("trees, tokens, rounds and branches must be at least 1")

    @property
    def grown(self) -> int:
        """Number of leaves of all trees of a task: m * (1 + l * n * t)."""
        return self.trees * (1 + self.rounds * self.tokens * self.branches)


def leaves_of(options: TreeRLSamplerOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when n is below one, or above the number of leaves that the trees have.
    """
    if not 1 <= n <= options.grown:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the treerl sampler grows trees * (1 + rounds * tokens * branches) = "
            f"{options.grown} leaves and keeps n of them, so n must be 1 to {options.grown}; got {n}."
        )
    return n


class TreeRLSampler(Sampler):
    """See the module."""

    def __init__(self, options: TreeRLSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        trunks = start_episodes(rollout, self._options.trees)
        await play_out(rollout, trunks)
        branched: set[Token] = set()
        for number in range(self._options.rounds):
            places: list[ForkPoint] = []
            for trunk in trunks:
                places += self._unsure(rollout, _leaves(rollout, trunk), branched, number)
            # Every place gets its first branch before any gets a second, so that an exhausted budget affects all alike.
            await play_out(rollout, await fork_episodes(rollout, places * self._options.branches))
        self._keep(rollout)

    def _unsure(self, rollout: Rollout, leaves: list[Episode], branched: set[Token], number: int) -> list[ForkPoint]:
        """The places before the tokens of highest entropy in a tree that have no branches yet."""
        found: dict[Token, tuple[float, Episode]] = {}
        for leaf in leaves:
            offset = 0
            for node in leaf.nodes:
                for entropy in rollout.entropy_of(node):
                    found.setdefault((node.episode, offset), (entropy, leaf))
                    offset += 1
        free = [token for token in found if token not in branched]
        chosen = sorted(free, key=lambda token: (-found[token][0], token))[: self._options.tokens]
        branched.update(chosen)
        for token in chosen:
            place_before(rollout, found[token][1], token[1])  # all cuts first: each shifts the places behind it
        return [
            place_before(rollout, leaf, offset).with_decision(round=number, token=offset, entropy=entropy)
            for (_, offset), (entropy, leaf) in ((token, found[token]) for token in chosen)
        ]

    def _keep(self, rollout: Rollout) -> None:
        leaves = [episode for episode in rollout.episodes if episode.complete]
        keep_leaves(rollout, leaves, rollout.n, rollout.rng("treerl", "keep"))


def _leaves(rollout: Rollout, trunk: Episode) -> list[Episode]:
    return [e for e in rollout.episodes if e.complete and e.record.tree == trunk.record.tree]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "treerl",
        TreeRLSampler,
        TreeRLSamplerOptions,
        summary="whole episodes that branch at the tokens the policy was least sure of",
        source="arXiv 2506.11902 §3.2; THUDM/TreeRL (EPTree, confidence A)",
        episodes=leaves_of,
        needs_fork=True,
    )
