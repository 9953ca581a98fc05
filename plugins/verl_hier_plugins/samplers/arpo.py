"""ARPO, entropy-based adaptive rollout (arXiv 2507.19849 §3.1), docs/methods/arpo.md."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph.nodes import Node
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, ZeroToOne
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, fork_episodes, start_episodes


# Chains that branch after turns whose entropy has risen: the part that `arpo` and `aepo` share.
@dataclass(frozen=True)
class ChainOptions:
    """Options of `arpo`, and of `aepo` beside its own. `actor_rollout_ref.rollout.n` is the number of chains."""

    initial_rollouts: Count = 8
    """Chains that start from the task; the others branch off, or start later when no chain is left to branch."""
    beam_size: Count = 2
    """A chain may get `beam_size - 1` branches after a turn."""
    branch_probability: ZeroToOne = 0.5
    """Probability of a branch where the entropy is what it was in the chain's first turn (p_b)."""
    entropy_weight: NonNegative = 0.2
    """How much a change of the step entropy moves that probability (w)."""
    entropy_positions: Count = 20
    """Tokens at the beginning of a turn whose entropies make its step entropy."""


def chains_of(name: str, options: ChainOptions, n: int) -> int:
    """Leaves to train for `rollout.n = n`.

    Raises:
        RecipeError: when more chains would start than are wanted.
    """
    if n < options.initial_rollouts:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the {name} sampler starts {options.initial_rollouts} chains and branches up "
            f"to n of them, so n >= {options.initial_rollouts}; got {n}. Raise it, or lower "
            "hier.sampler.initial_rollouts."
        )
    return n


def step_entropy(entropies: Sequence[float], vocabulary: int, positions: int = 20) -> float:
    """Entropy of the beginning of a turn: a sum over tokens, in units of the entropy of a uniform choice of one token.

    Args:
        entropies: (L,) nats at each token of the turn.
        vocabulary: number of tokens to choose from.
        positions: how many tokens count.

    Raises:
        ValueError: when the vocabulary has no choice.
    """
    if vocabulary < 2:
        raise ValueError(
            f"the step entropy is relative to the size of the vocabulary, which is said to be {vocabulary}"
        )
    return sum(entropies[:positions]) / math.log(vocabulary)


class Rule(ABC):
    """Decides which chains of one task branch; may remember the rounds of the task."""

    @abstractmethod
    def branches(self, draw: float, change: float) -> bool:
        """Whether a chain whose step entropy changed by `change` branches at a uniform `draw` from [0, 1)."""

    @abstractmethod
    def probability(self, change: float) -> float:
        """Probability that a draw makes it branch."""

    def note(self, grew: bool) -> None:  # noqa: B027 - optional
        """Called after each round: whether the task got a new chain in it."""

    def state(self) -> dict[str, Any]:
        """The rule's memory, for the record of a branch."""
        return {}


@dataclass
class Chain:
    """An episode and its step entropies.

    Attributes:
        episode: its turns.
        first: step entropy of its own first turn; a branch has its own, whatever its source had. None before.
        last: step entropy of its last turn.
        measured: the last node of that turn.
    """

    episode: Episode
    first: float | None = None
    last: float = 0.0
    measured: Node | None = None

    @property
    def change(self) -> float:
        """How much the last turn's step entropy exceeds the first one's."""
        return 0.0 if self.first is None else self.last - self.first

    def measure(self, rollout: Rollout, positions: int) -> None:
        """Measure the turn that it has just taken, if it took one.

        Raises:
            RolloutError: when the server returned no log-probs.
        """
        node = self.episode.last_node
        if node is None or node is self.measured or node.partial or node.episode != self.episode.id:
            return
        self.measured = node
        self.last = turn_entropy(rollout, node, positions)
        self.first = self.last if self.first is None else self.first
        node.decision |= {"step_entropy": self.last, "entropy_change": self.change}


def turn_entropy(rollout: Rollout, node: Node, positions: int) -> float:
    """Step entropy of the turn that ends with `node`.

    Raises:
        RolloutError: when the server returned no log-probs.
    """
    entropies = [rollout.entropy_of(piece) for piece in rollout.graph.pieces(node)]
    if not all(entropies):
        raise RolloutError(
            "this sampler branches by entropy, and the rollout server returned no log-probs; set "
            "actor_rollout_ref.rollout.calculate_log_probs: true."
        )
    return step_entropy([at for piece in entropies for at in piece], rollout.vocabulary, positions)


class EntropyChains(Sampler):
    """The loop of both methods; a subclass brings the rule, and may choose how many chains start."""

    name: str

    def __init__(self, options: ChainOptions) -> None:
        self.options = options

    @abstractmethod
    def rule(self) -> Rule:
        """A rule for one task."""

    async def initial(self, rollout: Rollout) -> int:
        """Chains to start from the task."""
        return self.options.initial_rollouts

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        task = _Task(rollout, self.options, self.rule(), self.name)
        task.start(min(await self.initial(rollout), rollout.n), "initial")
        while task.active:
            await task.round()


class _Task:
    """The chains of one task, in the order in which they were made."""

    def __init__(self, rollout: Rollout, options: ChainOptions, rule: Rule, name: str) -> None:
        self._rollout = rollout
        self._options = options
        self._rule = rule
        self._rng = rollout.rng(name)
        self._chains: list[Chain] = []
        self.active: list[Chain] = []

    @property
    def room(self) -> int:
        """Chains that may still be made. A lost chain counts, a branch that took no turn does not."""
        return self._rollout.n - sum(chain.episode.record.error != EndReason.IDLE for chain in self._chains)

    def start(self, number: int, reason: str) -> None:
        """Fresh chains, as many as the budget can serve."""
        self._add(start_episodes(self._rollout, number, reason=reason))

    async def round(self) -> None:
        """One turn of each active chain, then branches; a fresh chain when none is active."""
        going = set(map(id, await advance_turn(self._rollout, [chain.episode for chain in self.active])))
        for chain in self.active:
            chain.measure(self._rollout, self._options.entropy_positions)
        self.active = [chain for chain in self.active if id(chain.episode) in going and not chain.episode.over]
        before = len(self._chains)
        for chain in list(self.active):
            await self._branch(chain)
        if not self.active and self.room > 0:
            self.start(1, "fresh")
            self._rollout.count("fresh_chains", len(self._chains) - before)
        self._rule.note(len(self._chains) > before)

    async def _branch(self, chain: Chain) -> None:
        """Draw for the branches of one chain."""
        change, draws = chain.change, []
        for _ in range(min(self._options.beam_size - 1, self.room)):
            draws.append(self._rng.random())
            if self._rule.branches(draws[-1], change):
                why = {"draw": draws[-1], "entropy_change": change, "probability": self._rule.probability(change)}
                place = ForkPoint(chain.episode, decision={"reason": "branch", **why, **self._rule.state()})
                self._add(await fork_episodes(self._rollout, [place], beside=len(self.active)))
        if draws and chain.measured is not None:
            chain.measured.decision["draws"] = draws
            self._rollout.count("branch_draws", len(draws))

    def _add(self, episodes: list[Episode]) -> None:
        made = [Chain(episode) for episode in episodes]
        self._chains += made
        self.active += [chain for chain in made if not chain.episode.over]


@dataclass(frozen=True)
class Rising(Rule):
    """Branch when clip(U - w ΔH, 0, 1) <= p_b, that is with probability clip(p_b + w ΔH, 0, 1).

    Attributes:
        base: p_b.
        weight: w.
    """

    base: float
    weight: float

    def branches(self, draw: float, change: float) -> bool:
        """See `Rule.branches`."""
        return min(max(draw - self.weight * change, 0.0), 1.0) <= self.base

    def probability(self, change: float) -> float:
        """See `Rule.probability`; p_b = 1 always branches."""
        return 1.0 if self.base >= 1 else min(max(self.base + self.weight * change, 0.0), 1.0)


class ARPO(EntropyChains):
    """See the module."""

    name = "arpo"

    def rule(self) -> Rule:
        """See `EntropyChains.rule`."""
        return Rising(self.options.branch_probability, self.options.entropy_weight)


def _episodes(options: ChainOptions, n: int) -> int:
    return chains_of("arpo", options, n)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "arpo",
        ARPO,
        ChainOptions,
        summary="chains that branch after turns in which the policy became less sure",
        source="arXiv 2507.19849 §3.1; RUC-NLPIR/ARPO vllm_rollout_with_tools.py::generate_sequences",
        episodes=_episodes,
        needs_fork=True,
        needs_logprobs=True,
    )
