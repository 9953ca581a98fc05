"""AEPO, dynamic entropy-balanced rollout (arXiv 2510.14545 §3.1), docs/methods/aepo.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, ZeroToOne
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Rollout
from verl_hier.rollout.branching import advance_turn
from verl_hier_plugins.samplers.arpo import ChainOptions, EntropyChains, Rule, chains_of, turn_entropy

Reset = Literal["sane", "released"]


@dataclass(frozen=True)
class BalancedOptions(ChainOptions):
    """Options of `aepo`: those of `arpo`, and its own."""

    initial_rollouts: int = 6
    """Chains that start from the task, without `dynamic`; the others branch off, or start later when no chain is left
    to branch."""
    penalty: ZeroToOne = 0.05
    """Share by which the random number that decides about a branch is lowered for each consecutive round in which the
    task got new chains."""
    reset: Reset = "sane"
    """When the count of consecutive rounds starts again. `sane`: at the first round without a new chain. `released`: as
    in the released code, only if another task of the batch got a chain in that round; a task that is sampled alone
    then never starts again."""
    dynamic: bool = False
    """Choose the number of chains that start by the entropies of a probe, instead of `initial_rollouts`."""
    root_tokens: Count = 50
    """Tokens that are sampled for the task's prompt to measure how uncertain the policy is about the task."""
    sensitivity: NonNegative = 0.5
    """How strongly the difference between the entropy of the task and that of the turns changes the number of starting
    chains (β)."""


def starting_chains(n: int, root: float, tools: float, sensitivity: float = 0.5) -> int:
    """m = clip(floor(n σ(β (H_root - H_tool))) + 1, 1, n), the chains that start; the other n - m may branch."""
    return min(max(math.floor(n / (1.0 + math.exp(-sensitivity * (root - tools)))) + 1, 1), n)


class Streak:
    """Rounds in a row in which a task got new chains.

    The released code advances a whole batch in one loop and looks at its streaks only in rounds in which some task of
    the batch got a chain. Here each task has a loop of its own; `rounds` stands for the common one.
    """

    def __init__(self, reset: Reset, rounds: set[int]) -> None:
        """
        Args:
            reset: see `BalancedOptions`.
            rounds: numbers of the rounds in which some task got a chain; this one adds its own.
        """
        self._sane = reset == "sane"
        self._rounds = rounds
        self._grew: list[bool] = []

    def note(self, grew: bool) -> None:
        """Record whether the task got new chains in the round that has just ended."""
        if grew:
            self._rounds.add(len(self._grew))
        self._grew.append(grew)

    @property
    def length(self) -> int:
        """The present length. It is counted on each call, because rounds of other tasks may be recorded late."""
        length = 0
        for number, grew in enumerate(self._grew):
            if grew:
                length += 1
            elif self._sane or number in self._rounds:
                length = 0
        return length


@dataclass(frozen=True)
class Balanced(Rule):
    """Branch when clip((U + w ΔH) f, 0, 1) >= p_b, where f = max(0, 1 - penalty * streak).

    Attributes:
        base: p_b.
        weight: w.
        penalty: share of the draw that each round of the streak takes.
        streak: the task's.
    """

    base: float
    weight: float
    penalty: float
    streak: Streak

    @property
    def factor(self) -> float:
        """The factor by which a draw is multiplied."""
        return max(0.0, 1.0 - self.penalty * self.streak.length)

    def branches(self, draw: float, change: float) -> bool:
        """See `Rule.branches`."""
        return min(max((draw + self.weight * change) * self.factor, 0.0), 1.0) >= self.base

    def probability(self, change: float) -> float:
        """See `Rule.probability`; p_b = 0 always branches."""
        if self.base <= 0:
            return 1.0
        factor = self.factor
        return 0.0 if factor == 0 else 1.0 - min(max(self.base / factor - self.weight * change, 0.0), 1.0)

    def note(self, grew: bool) -> None:
        """See `Rule.note`."""
        self.streak.note(grew)

    def state(self) -> dict[str, Any]:
        """See `Rule.state`."""
        return {"streak": self.streak.length}


class AEPO(EntropyChains):
    """See the module."""

    name = "aepo"
    options: BalancedOptions

    def __init__(self, options: BalancedOptions, rounds: set[int] | None = None) -> None:
        """
        Args:
            options: of the recipe.
            rounds: shared by the tasks of a batch that advance in common rounds; see `Streak`.
        """
        super().__init__(options)
        self._rounds = rounds

    def rule(self) -> Rule:
        """See `EntropyChains.rule`."""
        options = self.options
        streak = Streak(options.reset, set() if self._rounds is None else self._rounds)
        return Balanced(options.branch_probability, options.entropy_weight, options.penalty, streak)

    async def initial(self, rollout: Rollout) -> int:
        """See `EntropyChains.initial`. Where a probe fails, `initial_rollouts` chains start."""
        if not self.options.dynamic:
            return self.options.initial_rollouts
        root = await self._root_entropy(rollout)
        tools = None if root is None else await self._tool_entropy(rollout)
        if root is None or tools is None:
            rollout.count("probes_lost")
            return self.options.initial_rollouts
        number = starting_chains(rollout.n, root, tools, self.options.sensitivity)
        rollout.episodes[-1].record.decision |= {"root_entropy": root, "tool_entropy": tools, "chains": number}
        return number

    async def _root_entropy(self, rollout: Rollout) -> float | None:
        """H_root, the entropy of a first turn that is abandoned after `root_tokens`; None when the episode failed."""
        episode = rollout.start(trained=False, reason="root")
        episode.trained = False
        await rollout.advance([episode], tokens=self.options.root_tokens)
        episode.discard("probe")
        node = episode.last_node
        return None if node is None else turn_entropy(rollout, node, self.options.entropy_positions)

    async def _tool_entropy(self, rollout: Rollout) -> float | None:
        """H_tool, the mean entropy of the turns of one whole episode; None when the episode failed."""
        episode = rollout.start(trained=False, reason="probe")
        episode.trained = False
        running = [episode]
        while running:
            running = [each for each in await advance_turn(rollout, running) if not each.over]
        turns = [rollout.graph.nodes[place] for place in episode.path]
        found = [turn_entropy(rollout, node, self.options.entropy_positions) for node in turns if not node.partial]
        return sum(found) / len(found) if episode.complete and found else None


def _episodes(options: BalancedOptions, n: int) -> int:
    return n if options.dynamic else chains_of("aepo", options, n)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "aepo",
        AEPO,
        BalancedOptions,
        summary="as arpo, penalising branches in a row; a probe may choose the number of starting chains",
        source="arXiv 2510.14545 §3.1; RUC-NLPIR/ARPO AEPO/ vllm_rollout_with_tools.py::generate_sequences",
        episodes=_episodes,
        needs_fork=True,
        needs_logprobs=True,
        needs_tokens=lambda options: options.dynamic,
    )
