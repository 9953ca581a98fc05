"""LATR (arXiv 2510.24302): forks at tokens with a close second, which stay when they diverge; docs/methods/latr.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, ZeroToOne
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import action_tokens, at_least, place_before, reach, start_episodes, token_at
from verl_hier.rollout.budget import BudgetSpent

MATHEMATICAL_SIGNS = frozenset("+-*/\\<>=()[]{}_^&%$0123456789")


@dataclass(frozen=True)
class LATROptions:
    """Options of `latr`. `actor_rollout_ref.rollout.n` is the number of episodes, of the tree and plain ones."""

    least_probability: ZeroToOne = 0.15
    """The second token forks when it is more likely than this …"""
    largest_gap: ZeroToOne = 0.25
    """… and less likely than the first by less than this."""
    lookahead: tuple[int, ...] = (20, 30, 50)
    """Tokens after a fork at which it is compared with the path it left, in ascending order."""
    longest_suffix: ZeroToOne = 0.2
    """A fork is pruned when an end of its tokens is found anywhere in those of the path it left, or the other way
    round, and is longer than this share of them."""
    largest_overlap: ZeroToOne = 0.5
    """A fork is pruned when its longest common subsequence with the path it left exceeds this share of its tokens."""
    keep_signs: bool = True
    """Whether a fork is never pruned when the path it left continues with a digit or a mathematical sign."""
    tree_tokens: Count = 1024
    """Tokens of a path after which the tree ends and running episodes continue by ordinary sampling."""
    full: ZeroToOne = 0.98
    """The tree ends when it has this share of its leaves and has compared each fork for the last time."""
    full_decay: ZeroToOne = 0.05
    """By how much that share would have fallen after `hier.rollout.max_tokens_per_turn` tokens; it falls linearly."""
    shares: dict[str, float] = field(default_factory=lambda: {"0": 1.0, "100": 0.75, "200": 0.5, "300": 0.25})
    """Trainer step to the share of `rollout.n` that comes from the tree from then on; the rest is sampled plainly."""

    def __post_init__(self) -> None:
        if not self.lookahead or min(self.lookahead) < 1 or list(self.lookahead) != sorted(set(self.lookahead)):
            raise ValueError("lookahead must name numbers of tokens of at least 1, each larger than the one before")
        if not all(step.isdecimal() and 0 <= share <= 1 for step, share in self.shares.items()):
            raise ValueError("shares must map trainer steps to shares within [0, 1]")


@dataclass(frozen=True)
class _Fork:
    """A branch: from which token on it left which path."""

    episode: Episode
    parent: Episode
    offset: int


class LATR(Sampler):
    """See the module."""

    def __init__(self, options: LATROptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        wanted = self._tree_leaves(rollout)
        if wanted:
            await _Tree(rollout, self._options, wanted).grow()
        alive = _alive(rollout)
        # Leaves that the tree lacks are sampled independently; they are no copies.
        await rollout.run([*alive, *start_episodes(rollout, rollout.n - len(alive), why="plain")])

    def _tree_leaves(self, rollout: Rollout) -> int:
        """Leaves that the tree may have in this step."""
        due = [int(step) for step in self._options.shares if int(step) <= rollout.request.step]
        share = self._options.shares[str(max(due))] if due else 1.0
        return round(rollout.n * share)


class _Tree:
    """The tree phase of one task.

    The method decides token by token. Its paths are greedy, so that they are generated a window ahead here, and the
    decisions are made afterwards in the order of the tokens.
    """

    def __init__(self, rollout: Rollout, options: LATROptions, wanted: int) -> None:
        self._rollout = rollout
        self._options = options
        self._wanted = wanted
        self._forks: list[_Fork] = []

    async def grow(self) -> None:
        """Token by token, until the tree is full and tested, or long enough; what runs afterwards samples."""
        self._rollout.top_logprobs = 2
        for path in start_episodes(self._rollout, 1, why="tree"):
            path.greedy = True
        offset = stop = 0
        while offset < self._options.tree_tokens and self._reaches(offset) and not self._settled(offset - 1):
            if offset == stop:
                stop = self._window_end(offset)
                await reach(self._rollout, self._running(), stop)
            await self._branch(offset, stop)
            offset += 1
            self._prune(offset)
        for path in _alive(self._rollout):
            path.greedy = False
        self._rollout.top_logprobs = 0

    def _reaches(self, offset: int) -> bool:
        """Whether a path has a token at `offset`, or may still get one."""
        return any(not path.over or _length(path) > offset for path in _alive(self._rollout))

    def _running(self) -> list[Episode]:
        return [episode for episode in self._rollout.episodes if not episode.over]

    def _window_end(self, start: int) -> int:
        """How far to generate at once: not beyond the token at which the tree, when it is full, can end first."""
        tested = self._last_birth() + self._options.lookahead[-1] + 2
        most = min(start + self._options.lookahead[0], self._options.tree_tokens)
        return min(most, tested) if tested > start else most

    def _settled(self, offset: int) -> bool:
        """Whether, after the token at `offset`, the tree has its leaves, and each fork has had its last comparison."""
        options = self._options
        share = options.full - options.full_decay * max(offset, 0) / self._rollout.limits.max_tokens_per_turn
        full = len(_alive(self._rollout)) >= round(self._wanted * share)
        return full and self._last_birth() + options.lookahead[-1] < offset

    def _last_birth(self) -> int:
        """The token at which the youngest fork left its path; 0 without forks."""
        return max((fork.offset for fork in self._forks if not _pruned(fork.episode)), default=0)

    async def _branch(self, offset: int, stop: int) -> None:
        """Fork where the token at `offset` has a close second, path by path as long as there is room."""
        fresh: list[Episode] = []
        for path in _alive(self._rollout):
            if len(_alive(self._rollout)) >= self._wanted:
                break
            fork = await self._fork(path, offset)
            fresh += [fork] if fork is not None else []
        await reach(self._rollout, fresh, stop)

    async def _fork(self, path: Episode, offset: int) -> Episode | None:
        """A fork that takes the second token at `offset` of a path, if that is close."""
        if offset >= _length(path) or any(f.episode is path and f.offset >= offset for f in self._forks):
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

    def _prune(self, length: int) -> None:
        """Give up forks that do not diverge from the path they left, and what branched off them.

        Args:
            length: tokens of the paths that count; forks are compared that have one of the `lookahead` of their own.
        """
        due = [f for f in self._forks if length - f.offset in self._options.lookahead and not _pruned(f.episode)]
        for fork in due:
            mine, theirs = (self._since(episode, fork.offset, length) for episode in (fork.episode, fork.parent))
            if mine and theirs and not self._is_kept(theirs[0]) and self._too_similar(mine, theirs):
                self._discard(fork.episode)

    def _since(self, episode: Episode, start: int, stop: int) -> list[int]:
        """The tokens of a path from `start` to `stop`; none when it has ended within them, which cannot be compared."""
        tokens = action_tokens(episode)
        ended = episode.over and len(tokens) <= stop
        return [] if ended or len(tokens) < stop else tokens[start:stop]

    def _is_kept(self, token: int) -> bool:
        """Whether a fork stays because of the token that it replaced."""
        return self._options.keep_signs and mathematical(self._rollout.renderer.decode([token]))

    def _too_similar(self, mine: list[int], theirs: list[int]) -> bool:
        suffix = max(suffix_anywhere(mine, theirs), suffix_anywhere(theirs, mine))
        if suffix > self._options.longest_suffix * len(mine):
            return True
        return common_subsequence(mine, theirs) > self._options.largest_overlap * len(mine)

    def _discard(self, episode: Episode) -> None:
        """Give up a branch and its branches."""
        for fork in self._forks:
            if fork.parent is episode and not _pruned(fork.episode):
                self._discard(fork.episode)
        episode.discard("too_similar")
        self._rollout.count("too_similar")


def _alive(rollout: Rollout) -> list[Episode]:
    """Episodes that are or may become leaves, in the order in which they were made."""
    return [episode for episode in rollout.episodes if episode.complete or not episode.over]


def _length(episode: Episode) -> int:
    """Sampled tokens of a path so far."""
    return sum(len(node.action) for node in episode.nodes)


def _pruned(episode: Episode) -> bool:
    return episode.record.status == "pruned"


def mathematical(text: str) -> bool:
    """Whether a token is made of digits and signs; spaces count as signs, as in the released code."""
    return all(character in MATHEMATICAL_SIGNS for character in text.strip())


def suffix_anywhere(tokens: Sequence[int], text: Sequence[int]) -> int:
    """Length of the longest end of `tokens` that is found anywhere in `text`."""
    longest = 0
    for stop in range(len(text), 0, -1):
        length = 0
        while length < min(stop, len(tokens)) and tokens[-1 - length] == text[stop - 1 - length]:
            length += 1
        longest = max(longest, length)
    return longest


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
        source="arXiv 2510.24302; starreeze/latr model/generation.py, sample_filter.py, metrics.py (confidence A)",
        episodes=at_least(2, "latr sampler grows a tree of n leaves"),
        needs_fork=True,
        needs_top_logprobs=True,
        needs_logprobs=True,
        needs_tokens=True,
    )
