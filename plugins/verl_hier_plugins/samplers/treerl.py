"""Entropy-guided trees (EPTree, arXiv 2506.11902 §3.2), docs/methods/treerl.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import Node
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, fork_episodes, outcomes, place_before, play_out, start_episodes

Token = tuple[int, int]
"""An action token: the episode that sampled it, and its number among the action tokens of the path."""


@dataclass(frozen=True)
class TreeRLSamplerOptions:
    """Options of `treerl`. `actor_rollout_ref.rollout.n` is the number of leaves that are trained (16 in the paper)."""

    trees: int = 6
    """Trees for each task (m); each begins with one whole episode."""
    tokens: int = 2
    """Tokens of every tree at which branches begin in a round (n): those with the highest entropy."""
    rounds: int = 1
    """Rounds of branching (l)."""
    branches: int = 2
    """Branches that begin at each of these tokens (t)."""
    final_words: tuple[str, ...] = ("answer", "conclusion")
    """Words that begin the end of an episode: behind a token that contains one of them, in small or capital letters, no
    branch begins among the tokens that the same episode sampled."""

    def __post_init__(self) -> None:
        if min(self.trees, self.tokens, self.rounds, self.branches) < 1:
            raise ValueError("trees, tokens, rounds and branches must be at least 1")
        if not all(self.final_words):
            raise ValueError("final_words must not hold an empty word, which every token contains")

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
            f"{options.grown} leaves and trains n of them, so n must be 1 to {options.grown}; got {n}."
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
        _keep(rollout)

    def _unsure(self, rollout: Rollout, leaves: list[Episode], branched: set[Token], number: int) -> list[ForkPoint]:
        """The places before the tokens of highest entropy in a tree that have no branches yet."""
        found: dict[Token, tuple[float, Episode]] = {}
        for leaf in leaves:
            for token, entropy in self._branch_points(rollout, leaf):
                found.setdefault(token, (entropy, leaf))
        free = [token for token in found if token not in branched]
        chosen = sorted(free, key=lambda token: (-found[token][0], token))[: self._options.tokens]
        branched.update(chosen)
        for token in chosen:
            place_before(rollout, found[token][1], token[1])  # all cuts first: each shifts the places behind it
        return [
            place_before(rollout, leaf, offset).with_decision(round=number, token=offset, entropy=entropy)
            for (_, offset), (entropy, leaf) in ((token, found[token]) for token in chosen)
        ]

    def _branch_points(self, rollout: Rollout, leaf: Episode) -> Iterator[tuple[Token, float]]:
        """The tokens of a path at which branches may begin, and their entropies.

        Left out are the first token of a branch, which is a branch point already, and what follows a final word.
        """
        owner, closed, offset = -1, False, 0
        for node in leaf.nodes:
            begins = node.episode != owner and rollout.episodes[node.episode].record.source >= 0
            if node.episode != owner:
                owner, closed = node.episode, False
            final = self._final_token(rollout, node)
            for at, entropy in enumerate(rollout.entropy_of(node)):
                if not (closed or (begins and at == 0)):
                    yield (owner, offset + at), entropy
                closed = closed or at == final
            offset += len(node.action)

    def _final_token(self, rollout: Rollout, node: Node) -> int | None:
        """Place of the first token of a node that contains a final word."""
        words = [word.lower() for word in self._options.final_words]
        if not any(word in node.text.lower() for word in words):
            return None
        texts = (rollout.renderer.decode([token]).lower() for token in node.action)
        return next((at for at, text in enumerate(texts) if any(word in text for word in words)), None)


def _keep(rollout: Rollout) -> None:
    """Draw the leaves to train: one that succeeded, if there is one, and others; the rest is withheld."""
    leaves = [episode for episode in rollout.episodes if episode.complete]
    drawn = rollout.rng("treerl", "keep").sample(range(len(leaves)), len(leaves))
    won = [outcome >= 1 for outcome in outcomes(leaves)]
    first = next((place for place in drawn if won[place]), None)
    drawn.sort(key=lambda place: place != first)
    for place in drawn[rollout.n :]:
        leaves[place].withhold()
        rollout.count(EndReason.NOT_KEPT.value)


def _leaves(rollout: Rollout, trunk: Episode) -> list[Episode]:
    return [e for e in rollout.episodes if e.complete and e.record.tree == trunk.record.tree]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "treerl",
        TreeRLSampler,
        TreeRLSamplerOptions,
        summary="whole episodes that branch at the tokens the policy was least sure of",
        source="arXiv 2506.11902 §3.2; THUDM/TreeRL tree_node.py, entropy_chain_local_manager.py",
        episodes=leaves_of,
        roots=lambda options, n: min(options.trees, n),
        needs_fork=True,
        needs_logprobs=True,
        needs_tokens=True,
    )
