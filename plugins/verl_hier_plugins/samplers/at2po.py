"""AT²PO: one tree a task that samples its least certain turns again (arXiv 2601.04767), docs/methods/at2po.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from verl_hier.errors import RecipeError, RolloutError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, fork_episodes, keep_leaves, play_out, start_episodes


@dataclass(frozen=True)
class AT2POSamplerOptions:
    """Options of `at2po`. `actor_rollout_ref.rollout.n` is the number of leaves, at most chains + rounds * turns."""

    chains: int = 10
    """Episodes from the task that are played to their end first."""
    rounds: int = 2
    """Rounds in which turns of the tree are sampled again."""
    turns: int = 6
    """Turns that are sampled again in a round, each as a further episode from the state before it."""
    choose: Literal["entropy", "random"] = "entropy"
    """Which turns: the least certain ones, or uniformly drawn ones."""
    penalty: float = 0.05
    """What each sibling of a turn takes off its entropy (nats), so that branches spread over the tree."""

    def __post_init__(self) -> None:
        if min(self.chains, self.turns) < 1 or self.rounds < 0:
            raise ValueError("chains and turns must be at least 1, rounds at least 0")


def leaves_of(options: AT2POSamplerOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when `n` is more than the tree grows.
    """
    most = options.chains + options.rounds * options.turns
    if not 1 <= n <= most:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the at2po sampler grows chains + rounds * turns = {most} leaves, so n must "
            f"be between 1 and {most}; got {n}."
        )
    return n


@dataclass
class _Tree:
    """The turns of the complete episodes of a task as a tree; node 0 is the task.

    Attributes:
        parent: node before each node, -1 for node 0.
        entropy: mean -log p of each turn's tokens; 0 for node 0.
        places: where to fork in order to sample a node again.
    """

    parent: list[int] = field(default_factory=lambda: [-1])
    entropy: list[float] = field(default_factory=lambda: [0.0])
    places: list[ForkPoint] = field(default_factory=list)

    @classmethod
    def of(cls, rollout: Rollout, complete: Sequence[Episode]) -> _Tree:
        tree, known = cls(places=[ForkPoint(complete[0], 0)]), {-1: 0}
        for episode in complete:
            nodes, above = episode.nodes, 0
            for start, stop in zip(episode.boundaries, episode.boundaries[1:], strict=False):
                last = nodes[stop - 1].id
                if last not in known:
                    known[last] = len(tree.parent)
                    tree.parent.append(above)
                    tree.entropy.append(surprise(rollout, episode, start, stop))
                    tree.places.append(ForkPoint(episode, start))
                above = known[last]
        return tree


class AT2POSampler(Sampler):
    """See the module."""

    def __init__(self, options: AT2POSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        complete = await play_out(rollout, start_episodes(rollout, options.chains))
        for number in range(options.rounds if complete else 0):
            tree = _Tree.of(rollout, complete)
            inner = set(tree.parent)
            is_leaf = [node not in inner for node in range(len(tree.parent))]
            if options.choose == "entropy":
                chosen = expansions(tree.parent, is_leaf, tree.entropy, options.turns, options.penalty)
            else:
                chosen = self._draw(rollout, sorted(inner - {-1}), number)
            places = [tree.places[node].with_decision(round=number, entropy=tree.entropy[node]) for node in chosen]
            complete += await play_out(rollout, await fork_episodes(rollout, places))
        keep_leaves(rollout, complete, rollout.n, rollout.rng("at2po", "keep"))

    def _draw(self, rollout: Rollout, candidates: list[int], number: int) -> list[int]:
        """Random candidates, each once where there are enough."""
        rng, wanted = rollout.rng("at2po", "round", number), self._options.turns
        return rng.sample(candidates, wanted) if len(candidates) >= wanted else rng.choices(candidates, k=wanted)


def surprise(rollout: Rollout, episode: Episode, start: int, stop: int) -> float:
    """Mean -log p of the tokens of a turn, the nodes `start` to `stop` of an episode.

    Raises:
        RolloutError: when the server returned no log-probs.
    """
    logprobs = [logprob for node in episode.nodes[start:stop] for logprob in node.logprobs]
    if not logprobs:
        raise RolloutError(
            "the at2po sampler goes by the log-probs of sampled tokens, and the rollout server returned none; set "
            "actor_rollout_ref.rollout.calculate_log_probs: true."
        )
    return -sum(logprobs) / len(logprobs)


def breadth_first(parent: Sequence[int]) -> list[int]:
    """Nodes of a tree depth by depth from node 0; children in the order of their numbers."""
    children: list[list[int]] = [[] for _ in parent]
    for node, above in enumerate(parent):
        if above >= 0:
            children[above].append(node)
    order = [0]
    for node in order:
        order += children[node]
    return order


def expansions(
    parent: Sequence[int],
    is_leaf: Sequence[bool],
    entropy: Sequence[float],
    number: int,
    penalty: float = 0.05,
) -> list[int]:
    """The nodes to sample again, best first.

    A node's score is its entropy, less `penalty` for each of its siblings; node 0, the task, counts its children but
    one. Equal scores keep the breadth-first order. With fewer candidates than `number` the ranking is repeated.

    Args:
        parent: node before each node, -1 for node 0.
        is_leaf: whether a node ended its episode; such nodes are no candidates.
        entropy: of each node.
        number: how many nodes to choose.
        penalty: see above.
    """
    siblings = [sum(other == max(above, 0) for other in parent) - 1 for above in parent]
    candidates = [node for node in breadth_first(parent) if not is_leaf[node]]
    ranked = sorted(candidates, key=lambda node: penalty * siblings[node] - entropy[node])
    return [ranked[place % len(ranked)] for place in range(number)]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "at2po",
        AT2POSampler,
        AT2POSamplerOptions,
        summary="one tree a task; the turns the policy was least sure of are sampled again, round by round",
        source="arXiv 2601.04767; zzfoutofspace/ATPO vllm_rollout_with_tools_tree_offline.py",
        episodes=leaves_of,
        roots=lambda options, n: min(options.chains, n),
        needs_fork=True,
        needs_logprobs=lambda options: options.choose == "entropy",
    )
