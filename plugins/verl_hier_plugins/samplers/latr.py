"""LATR (arXiv 2510.24302): forks at tokens with a close second, which stay when they diverge; docs/methods/latr.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import action_tokens, at_least, place_before, reach, start_episodes, token_at
from verl_hier.rollout.budget import BudgetSpent


@dataclass(frozen=True)
class LATROptions:
    """Options of `latr`. `actor_rollout_ref.rollout.n` is the number of episodes, of the tree and plain ones."""

    least_probability: float = 0.15
    """The second token forks when it is at least this likely …"""
    largest_gap: float = 0.25
    """… and less likely than the first by at most this much."""
    lookahead: tuple[int, ...] = (20, 30, 50)
    """Tokens after a fork at which it is compared with the path it left; the first is also the length of a window."""
    longest_suffix: float = 0.2
    """A fork is pruned when its end, as a share of its length, equals the end of the path it left beyond this."""
    largest_overlap: float = 0.5
    """A fork is pruned when its longest common subsequence with the path it left, as a share, exceeds this."""
    tree_tokens: int = 1024
    """Tokens of a path after which the tree ends and running episodes continue by ordinary sampling."""
    full: float = 0.98
    """The tree ends when it has this share of its leaves."""
    shares: dict[str, float] = field(default_factory=lambda: {"0": 1.0, "100": 0.75, "200": 0.5, "300": 0.25})
    """Trainer step to the share of `rollout.n` that comes from the tree from then on; the rest is sampled plainly."""

    def __post_init__(self) -> None:
        if not self.lookahead or min(self.lookahead) < 1:
            raise ValueError("lookahead must name at least one number of tokens, each at least 1")
        if self.tree_tokens < 1:
            raise ValueError(f"tree_tokens must be at least 1, got {self.tree_tokens}")
        for name in ("least_probability", "largest_gap", "longest_suffix", "largest_overlap", "full"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be within [0, 1], got {getattr(self, name)}")
        if not all(step.isdecimal() and 0 <= share <= 1 for step, share in self.shares.items()):
            raise ValueError("shares must map trainer steps to shares within [0, 1]")


@dataclass
class _Fork:
    """A branch under observation: from which token on it left which path, and the checks it has passed."""

    episode: Episode
    parent: Episode
    offset: int
    passed: int = 0


class LATR(Sampler):
    """See the module."""

    def __init__(self, options: LATROptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        wanted = self._tree_leaves(rollout)
        if wanted:
            await _Tree(rollout, self._options, wanted).grow()
        alive = [episode for episode in rollout.episodes if episode.complete or not episode.over]
        # Leaves that the tree lacks are sampled independently; they are no copies.
        await rollout.run([*alive, *start_episodes(rollout, rollout.n - len(alive), why="plain")])

    def _tree_leaves(self, rollout: Rollout) -> int:
        """Leaves that the tree may have in this step."""
        due = [int(step) for step in self._options.shares if int(step) <= rollout.request.step]
        share = self._options.shares[str(max(due))] if due else 1.0
        return math.floor(rollout.n * share)


class _Tree:
    """The tree phase of one task."""

    def __init__(self, rollout: Rollout, options: LATROptions, wanted: int) -> None:
        self._rollout = rollout
        self._options = options
        self._wanted = wanted
        self._forks: list[_Fork] = []

    async def grow(self) -> None:
        """Window by window, until the tree is full or long enough; what runs afterwards samples."""
        options, rollout = self._options, self._rollout
        rollout.top_logprobs = 2
        window = options.lookahead[0]
        paths = start_episodes(rollout, 1, why="tree")
        for path in paths:
            path.greedy = True
        start = 0
        while self._running() and start < options.tree_tokens and len(self._alive()) < options.full * self._wanted:
            await reach(rollout, self._running(), start + window)
            await self._branch(start, start + window)
            self._prune()
            start += window
        for path in self._alive():
            path.greedy = False

    def _alive(self) -> list[Episode]:
        return [episode for episode in self._rollout.episodes if episode.complete or not episode.over]

    def _running(self) -> list[Episode]:
        return [episode for episode in self._rollout.episodes if not episode.over]

    async def _branch(self, start: int, stop: int) -> None:
        """Fork at the close seconds of a window, token by token; of one token, path by path."""
        for offset in range(start, stop):
            fresh: list[Episode] = []
            for path in self._alive():
                if len(self._alive()) >= self._wanted:
                    break
                fork = await self._fork(path, offset)
                fresh += [fork] if fork is not None else []
            await reach(self._rollout, fresh, stop)

    async def _fork(self, path: Episode, offset: int) -> Episode | None:
        """A fork that takes the second token at `offset` of a path, if that is close."""
        if offset >= len(action_tokens(path)) or any(f.episode is path and f.offset >= offset for f in self._forks):
            return None
        node, at = token_at(path, offset)
        if node.episode != path.id or len(node.top) <= at or len(node.top[at]) < 2:
            return None  # a shared token belongs to the path that made it
        (_, first), (token, second) = node.top[at][:2]
        options = self._options
        p, q = math.exp(first), math.exp(second)
        if q <= options.least_probability or p - q >= options.largest_gap:
            return None
        place = place_before(self._rollout, path, offset)
        try:
            fork = await path.fork(
                place.after, forced=[token], forced_logprobs=[second], why="close", token=offset, first=p, second=q
            )
        except BudgetSpent:
            return None
        fork.greedy = True
        self._forks.append(_Fork(fork, path, offset))
        return fork

    def _prune(self) -> None:
        """Give up forks that do not diverge from the path they left."""
        for fork in self._forks:
            for check in self._options.lookahead[fork.passed :]:
                mine = action_tokens(fork.episode, fork.offset, fork.offset + check)
                if fork.episode.record.status == "pruned" or len(mine) < check:
                    break
                fork.passed += 1
                theirs = action_tokens(fork.parent, fork.offset, fork.offset + check)
                if self._too_similar(mine, theirs):
                    fork.episode.discard("too_similar")
                    self._rollout.count("too_similar")

    def _too_similar(self, mine: list[int], theirs: list[int]) -> bool:
        length = len(mine)
        if common_suffix(mine, theirs) > self._options.longest_suffix * length:
            return True
        return common_subsequence(mine, theirs) > self._options.largest_overlap * length


def common_suffix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common end."""
    length = 0
    while length < min(len(left), len(right)) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length


def common_subsequence(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common subsequence, the numerator of ROUGE-L."""
    before = [0] * (len(right) + 1)
    for token in left:
        now = [0]
        for place, other in enumerate(right):
            now.append(before[place] + 1 if token == other else max(before[place + 1], now[place]))
        before = now
    return before[-1]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "latr",
        LATR,
        LATROptions,
        summary="greedy paths that fork where the second token is nearly as likely, if they then diverge",
        source="arXiv 2510.24302; starreeze/latr (mechanism: confidence A)",
        episodes=at_least(2, "latr sampler grows a tree of n leaves"),
        needs_fork=True,
        needs_top_logprobs=True,
    )
