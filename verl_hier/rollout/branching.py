"""What samplers that branch share: starts and forks within the budget, whole turns, fork points.

Points inside turns are numbers of action tokens along a path, which do not change when nodes are cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import Node
from verl_hier.rollout.budget import BudgetSpent
from verl_hier.rollout.end_reason import EndReason
from verl_hier.rollout.rollout import Episode, Rollout


@dataclass(frozen=True)
class ForkPoint:
    """Where to fork.

    Attributes:
        episode: the source.
        after: nodes to share, see `Episode.fork`; None for all that it has so far.
        decision: why; stored with the fork.
        trained: see `Episode.fork`.
    """

    episode: Episode
    after: int | None = None
    decision: dict[str, Any] = field(default_factory=dict)
    trained: bool = True

    def with_decision(self, **decision: Any) -> ForkPoint:
        """The same point with a decision."""
        return replace(self, decision=decision)


def start_episodes(rollout: Rollout, number: int, **decision: Any) -> list[Episode]:
    """Fresh episodes: `number` of them, or as many as the budget can serve."""
    made: list[Episode] = []
    try:
        while len(made) < min(number, rollout.budget.turns_left):
            made.append(rollout.start(**decision))
    except BudgetSpent:
        pass
    _count_skipped(rollout, number - len(made))
    return made


async def fork_episodes(rollout: Rollout, places: Sequence[ForkPoint], beside: int = 0) -> list[Episode]:
    """One fork at each place, in order, or as many as the budget can serve.

    Args:
        rollout: of all the places.
        places: a place may occur several times.
        beside: episodes that take their turns side by side with the forks, and are served first.
    """
    made: list[Episode] = []
    try:
        for place in places:
            if len(made) + beside >= rollout.budget.turns_left:
                break
            made.append(await place.episode.fork(place.after, trained=place.trained, **place.decision))
    except BudgetSpent:
        pass
    _count_skipped(rollout, len(places) - len(made))
    return made


async def advance_turn(
    rollout: Rollout,
    episodes: Iterable[Episode],
    tokens: int | None = None,
    watch: Callable[[Episode], bool] = lambda episode: False,
) -> list[Episode]:
    """One turn of each episode, to its end also where a budget cuts it into pieces.

    Args:
        rollout: of the episodes.
        episodes: those that take a turn.
        tokens: tokens of the first piece of a turn; None for no limit.
        watch: called between two pieces, for instance to force tokens; as long as it says so, the next piece has that
            limit too.

    Returns:
        Those that are still running or complete, in their order.
    """
    watched = episodes = list(episodes)
    await rollout.advance(episodes, tokens)
    while watched := [episode for episode in watched if _in_a_turn(episode) and watch(episode)]:
        await rollout.advance(watched, tokens)
    while unfinished := [episode for episode in episodes if _in_a_turn(episode)]:
        await rollout.advance(unfinished)
    discard_idle(rollout, episodes)
    return [episode for episode in episodes if episode.complete or not episode.over]


async def advance_part(
    rollout: Rollout, episodes: Iterable[Episode], goes_on: Callable[[Episode], bool]
) -> list[Episode]:
    """Turns of each episode, one at least, for as long as `goes_on` says so of an episode that waits for the next one.

    Returns:
        Those that are still running, in their order.
    """
    episodes = waiting = list(episodes)
    while waiting:
        alive = await advance_turn(rollout, waiting)
        waiting = [episode for episode in alive if not episode.over and goes_on(episode)]
    return [episode for episode in episodes if not episode.over]


def within_message(episode: Episode) -> bool:
    """Whether the agent that took the last turn takes the next one too, in the same segment: what it says until then is
    one message, to others or to the environment."""
    last, following = episode.last_node, episode.turn_request
    if last is None or following is None:
        return False
    return (last.agent, last.segment) == (following.context.agent, following.segment)


def within_segment(episode: Episode) -> bool:
    """Whether the next turn belongs to the segment of the last one, such as a step that several agents take jointly."""
    last, following = episode.last_node, episode.turn_request
    return last is not None and following is not None and last.segment == following.segment


def _in_a_turn(episode: Episode) -> bool:
    return not episode.over and episode.last_node is not None and episode.last_node.partial


async def play_out(rollout: Rollout, episodes: Iterable[Episode]) -> list[Episode]:
    """Play episodes to their end, side by side; returns the complete ones, in their order."""
    episodes = list(episodes)
    await rollout.run(episodes)
    discard_idle(rollout, episodes)
    return [episode for episode in episodes if episode.complete]


def outcomes(complete: Sequence[Episode]) -> list[float]:
    """How the complete episodes of a task ended: 1 for a success, 0 for a failure; where the environment does
    not say, the return, scaled so that the lowest of them is 0 and the highest 1 (all 0 when they are equal)."""
    returns = [episode.ret for episode in complete]
    low, high = min(returns, default=0.0), max(returns, default=0.0)
    scale = high - low or 1.0
    success = [episode.record.success for episode in complete]
    return [(ret - low) / scale if w is None else float(w) for ret, w in zip(returns, success, strict=True)]


def keep_leaves(rollout: Rollout, leaves: Sequence[Episode], number: int, rng: random.Random) -> None:
    """Draw at most `number` of the leaves without replacement; the others are discarded (`not_kept`)."""
    keep_only(rollout, leaves, rng.sample(leaves, min(number, len(leaves))), EndReason.NOT_KEPT)


def keep_only(rollout: Rollout, episodes: Iterable[Episode], kept: Sequence[Episode], reason: EndReason | str) -> None:
    """Discard the episodes that are not kept, and count them by the reason."""
    for episode in episodes:
        if episode not in kept:
            episode.discard(reason)
            rollout.count(reason.value if isinstance(reason, EndReason) else reason)


def at_least(least: int, sampler: str) -> Callable[[Any, int], int]:
    """The `SamplerSpec.episodes` of a sampler that trains n leaves and needs at least `least` of them.

    Args:
        least: lowest n.
        sampler: the sampler and what it does with n leaves, for the error.
    """

    def episodes(options: Any, n: int) -> int:
        if n < least:
            raise RecipeError(f"actor_rollout_ref.rollout.n: the {sampler}, so n >= {least}; got {n}.")
        return n

    return episodes


def inner_fork_points(episodes: Iterable[Episode]) -> list[ForkPoint]:
    """Every point between two turns on the paths of the complete episodes, once, however many share it.

    Args:
        episodes: the first of those that share a point is its source.
    """
    found: dict[int, ForkPoint] = {}
    for episode in episodes:
        path = episode.path if episode.complete else []
        for after in episode.boundaries:
            if 0 < after < len(path):
                found.setdefault(path[after - 1], ForkPoint(episode, after))
    return list(found.values())


def _count_skipped(rollout: Rollout, number: int) -> None:
    if number > 0:
        rollout.count("budget_skipped", number)


def discard_idle(rollout: Rollout, episodes: Iterable[Episode]) -> None:
    """Give up forks that ended before their first own turn, which would repeat their source."""
    for episode in episodes:
        if episode.complete and episode.record.source >= 0 and len(episode.path) == episode.record.shared:
            episode.discard(EndReason.IDLE)
            rollout.count("idle_forks")


def action_tokens(episode: Episode, start: int = 0, stop: int | None = None) -> list[int]:
    """Its sampled tokens so far, observations left out, from `start` up to `stop`."""
    return [token for node in episode.nodes for token in node.action][start:stop]


def token_at(episode: Episode, offset: int) -> tuple[Node, int]:
    """The node of the action token number `offset` of its path, and the token's place in it.

    Raises:
        IndexError: when the path has no such token.
    """
    for node in episode.nodes:
        if offset < len(node.action):
            return node, offset
        offset -= len(node.action)
    raise IndexError(f"episode {episode.id} has no action token {offset} places after its end")


def place_before(rollout: Rollout, episode: Episode, offset: int) -> ForkPoint:
    """Where to fork so that action token number `offset` of the path is the first that is not shared.

    Cuts the node that the token stands in, unless the token is its first.
    """
    node, at = token_at(episode, offset)
    if at:
        rollout.split(node, at)
    return ForkPoint(episode, episode.path.index(node.id))


async def reach(rollout: Rollout, episodes: Sequence[Episode], length: int) -> None:
    """Let episodes go on until each has `length` action tokens or is over; a turn that goes on behind them is cut."""
    while short := [episode for episode in episodes if not episode.over and len(action_tokens(episode)) < length]:
        missing = {episode.id: length - len(action_tokens(episode)) for episode in short}
        for tokens in sorted(set(missing.values())):
            await rollout.advance([episode for episode in short if missing[episode.id] == tokens], tokens)
