"""Which turn lost an attempt, and whose it was: by leaving the attempt out and looking at the others.

An attempt passes places: states that the world names, with the role that acts there, or else what its agents had
read. The worth of a place is the mean outcome of the *other* attempts that were there; where no other one was, all that
is known of it is what became of this attempt. The worth falls from the first place to the outcome, and each turn has
its part of that fall:

    drop(i) = worth(place of turn i) - worth(place of turn i + 1),   worth(end) = outcome,
    sum of all drops = worth(first place) - outcome

The turn with the largest drop lost the attempt. It is an estimate from a few attempts, and no proof.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise

from verl_hier.graph import RolloutGraph
from verl_hier.graph.choices import Turn, good_attempts, on_path, turns_of


@dataclass(frozen=True)
class Blame:
    """Who lost an attempt.

    Attributes:
        episode: the attempt.
        node: the last node of the turn; -1 where nothing tells.
        drop: what the turn lost of the worth.
        drops: the same for each turn of the attempt, in order.
        turns: the last node of each of them.
    """

    episode: int
    node: int
    drop: float
    drops: tuple[float, ...]
    turns: tuple[int, ...]

    @property
    def place(self) -> int:
        """The number of the turn in the attempt, from 0; -1 where nothing tells."""
        return self.turns.index(self.node) if self.node >= 0 else -1


def lost_attempts(graph: RolloutGraph, least: float | None = None) -> list[int]:
    """The attempts that were not good, see `good_attempts`; none where no attempt tells which are."""
    good = good_attempts(graph, least)
    found = [episode.id for episode in graph.complete() if episode.id not in good]
    returns = {episode.ret for episode in graph.complete()}
    known = least is not None or any(episode.success is not None for episode in graph.complete())
    return found if known or len(returns) > 1 else []


def by_the_others(graph: RolloutGraph, least: float | None = None) -> list[Blame]:
    """For each lost attempt the turn that lost most of what the others made of the same places.

    Args:
        graph: the attempts at a task.
        least: the least return of an attempt that is not lost; see `good_attempts`.
    """
    turns, good = turns_of(graph), good_attempts(graph, least)
    paths = {episode.id: on_path(graph, episode.id, turns) for episode in graph.complete()}
    visits: dict[Hashable, set[int]] = {}
    for episode, path in paths.items():
        for turn in path:
            visits.setdefault(place_of(graph, turn), set()).add(episode)
    found = []
    for episode in lost_attempts(graph, least):
        path = paths[episode]
        worth = [_worth(visits[place_of(graph, turn)] - {episode}, good) for turn in path] + [0.0]
        drops = [before - after for before, after in pairwise(worth)]
        numbers = tuple(turn.node for turn in path)
        most = max(drops, default=0.0)
        node = numbers[drops.index(most)] if most > 0 else -1
        found.append(Blame(episode, node, most if node >= 0 else 0.0, tuple(drops), numbers))
    return found


def place_of(graph: RolloutGraph, turn: Turn) -> Hashable:
    """The place of a turn: the state that the world names and the role that acts, or else what its agent had read."""
    first = graph.pieces(graph.nodes[turn.node])[0]
    return turn.place if first.anchor is None else (first.anchor, first.role)


def _worth(others: set[int], good: set[int]) -> float:
    return len(others & good) / len(others) if others else 0.0
