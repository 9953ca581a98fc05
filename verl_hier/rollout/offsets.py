"""Points inside turns, as numbers of action tokens along a path, which do not change when nodes are cut."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hier.graph.nodes import Node
from verl_hier.rollout.branching import ForkPoint
from verl_hier.rollout.rollout import Episode, Rollout


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
