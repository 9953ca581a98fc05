"""T²PO: a turn that is as uncertain as the one before is sampled again, and a thought whose uncertainty stands still is
closed (arXiv 2605.02178), docs/methods/t2po.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from verl_hier.graph.nodes import CONTINUED
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, CountOrZero, NonNegative, ZeroToOne
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, at_least, fork_episodes, start_episodes

RESAMPLED = "resampled"
CLOSED = "thoughts_closed"


@dataclass(frozen=True)
class T2POOptions:
    """Options of `t2po`. `actor_rollout_ref.rollout.n` is the number of episodes."""

    least_change: NonNegative = 0.3
    """A turn is sampled again while its uncertainty differs from that of the turn before by less than this, and at
    all (η)."""
    attempts: CountOrZero = 2
    """New samples of a turn at most."""
    entropy_weight: ZeroToOne = 0.5
    """Weight of the entropy in the uncertainty of a token; the rest is that of the missing confidence (α)."""
    top: Count = 5
    """Likeliest tokens that make the confidence of a token (j)."""
    window: int | None = None
    """Tokens over which the uncertainty inside of a thought is watched; turns are then sampled in pieces of so many
    tokens. Null leaves thoughts alone."""
    least_token_change: float = 0.05
    """A thought is closed, once in a turn, when the uncertainty changes by less than this from token to token, on
    average over the window (ε)."""
    thought: tuple[str, str] = ("<think>", "</think>")
    """What opens a thought, and what is inserted to close it."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 2:
            raise ValueError(f"window must be at least 2 tokens, got {self.window}")
        if len(self.thought) != 2 or not all(self.thought):
            raise ValueError(f"thought must be the text that opens one and the text that closes it, got {self.thought}")


@dataclass
class _Line:
    """An episode as it is kept, with the uncertainty of its last kept turn and the samples of the present one.

    Attributes:
        episode: the episode.
        before: uncertainty of the last kept turn; None before the first.
        tries: new samples of the present turn.
        tokens: entropy and confidence of each token of the kept turns.
    """

    episode: Episode
    before: float | None = None
    tries: int = 0
    tokens: list[tuple[float, float]] = field(default_factory=list)


class T2PO(Sampler):
    """See the module."""

    def __init__(self, options: T2POOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        rollout.top_logprobs = self._options.top
        lines = [_Line(episode) for episode in start_episodes(rollout, rollout.n)]
        while running := [line for line in lines if not line.episode.over]:
            turns = [len(line.episode.boundaries) for line in running]
            await self._advance(rollout, {line.episode: line for line in running})
            # A budget may end within a turn, which then cannot be measured.
            moved = [line for line, n in zip(running, turns, strict=True) if len(line.episode.boundaries) > n]
            while moved := [line for line in moved if self._stalls(rollout, line)]:
                moved = await self._again(rollout, moved)

    async def _advance(self, rollout: Rollout, lines: Mapping[Episode, _Line]) -> list[Episode]:
        """A turn of each episode; see `advance_turn`. Between the pieces, thoughts that stand still are closed."""
        if self._options.window is None:
            return await advance_turn(rollout, lines)

        def watch(episode: Episode) -> bool:
            return self._thinks_on(rollout, episode, lines[episode].tokens)

        return await advance_turn(rollout, lines, self._options.window, watch)

    def _thinks_on(self, rollout: Rollout, episode: Episode, before: list[tuple[float, float]]) -> bool:
        """Close the thought of the present turn if it stands still; False when the turn needs no more watching."""
        options, (opening, closing) = self._options, self._options.thought
        start = episode.boundaries[-1]
        pieces = episode.nodes[start:]
        text = "".join(piece.text for piece in pieces)
        if closing in text:
            return False
        turn = measure(rollout, episode, start, len(episode.nodes))
        window = options.window or 0
        if opening not in text or len(turn) <= window:
            return True
        if not stands_still(uncertainties(before + turn, options.entropy_weight), window, options.least_token_change):
            return True
        action = [token for piece in pieces for token in piece.action]
        insert = [{"role": CONTINUED, "content": closing}]
        episode.force(rollout.renderer.render(action, [], insert)[len(action) :])
        rollout.count(CLOSED)
        return False

    def _stalls(self, rollout: Rollout, line: _Line) -> bool:
        """Measure the turn that was just taken; False when it is kept."""
        options, episode = self._options, line.episode
        turn = measure(rollout, episode, *episode.boundaries[-2:])
        score = uncertainty(line.tokens + turn, len(turn), options.entropy_weight)
        if episode.last_node is not None:
            episode.last_node.decision |= {"uncertainty": score, "tries": line.tries}
        if (
            line.before is not None
            and line.tries < options.attempts
            and stalls(score, line.before, options.least_change)
        ):
            return True
        line.before, line.tries, line.tokens = score, 0, line.tokens + turn
        return False

    async def _again(self, rollout: Rollout, lines: list[_Line]) -> list[_Line]:
        """Sample the last turn of episodes again; returns those whose new turn replaced the old one."""
        places = [ForkPoint(line.episode, line.episode.boundaries[-2], {"attempt": line.tries}) for line in lines]
        forks = await fork_episodes(rollout, places)
        of_fork = dict(zip(forks, lines, strict=False))
        alive = set(map(id, await self._advance(rollout, of_fork)))
        replaced: list[_Line] = []
        for line, fork in zip(lines, forks, strict=False):
            if id(fork) not in alive:
                continue
            line.episode.discard(RESAMPLED)
            rollout.count(RESAMPLED)
            line.episode, line.tries = fork, line.tries + 1
            replaced.append(line)
        return replaced


def measure(rollout: Rollout, episode: Episode, start: int, stop: int) -> list[tuple[float, float]]:
    """Entropy and confidence of each token of a turn, the nodes `start` to `stop` of an episode.

    The confidence is the mean -log p of the likeliest tokens: high where one of them has all the probability.
    """
    found: list[tuple[float, float]] = []
    for node in episode.nodes[start:stop]:
        entropies = rollout.entropy_of(node)
        for entropy, top in zip(entropies, node.top or [[]] * len(entropies), strict=True):
            found.append((entropy, -sum(logprob for _, logprob in top) / max(len(top), 1)))
    return found


def uncertainty(tokens: Sequence[tuple[float, float]], last: int, weight: float) -> float:
    """Geometric mean of the uncertainties of the last `last` tokens of an episode.

    Args:
        tokens: entropy and confidence of all tokens so far; each is scaled to [0, 1] over them.
        last: tokens of the last turn.
        weight: of the entropy; the rest is that of 1 - confidence.
    """
    if not last:
        return 0.0
    return math.exp(sum(math.log(max(value, 1e-6)) for value in uncertainties(tokens, weight)[-last:]) / last)


def uncertainties(tokens: Sequence[tuple[float, float]], weight: float) -> list[float]:
    """Uncertainty of each token of an episode; see `uncertainty`."""
    entropies, confidences = (_scaled(column) for column in zip(*tokens, strict=True))
    return [weight * h + (1 - weight) * (1 - c) for h, c in zip(entropies, confidences, strict=True)]


def stands_still(values: Sequence[float], window: int, least_change: float) -> bool:
    """Whether the last `window` steps from one token to the next change less than `least_change` on average."""
    steps = [abs(after - before) for before, after in pairwise(values[-window - 1 :])]
    return sum(steps) < least_change * len(steps)


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / ((high - low) or 1.0) for value in values]


def stalls(score: float, before: float, least_change: float) -> bool:
    """Whether a turn is sampled again: its score differs from that of the turn before, but by less than the least
    change. Equal scores do not count, as in the released code."""
    return 0 < abs(score - before) < least_change


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "t2po",
        T2PO,
        T2POOptions,
        summary="episodes whose turns are sampled again while their uncertainty stays what it was",
        source="arXiv 2605.02178; WillDreamer/T2PO rollout_loop.py (rule of resampling)",
        episodes=at_least(1, "t2po sampler completes n episodes"),
        needs_fork=True,
        needs_top_logprobs=True,
        needs_scores=lambda options: options.window is not None,  # a thought is closed by forced tokens
        needs_logprobs=True,
        needs_tokens=lambda options: options.window is not None,
    )
