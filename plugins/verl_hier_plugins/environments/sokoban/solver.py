"""A solver of Sokoban: a search over the places of the boxes that goes for those near to goals first."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from verl_hier_plugins.environments.sokoban.levels import WAYS, Cell, distances, moved, walks

MOST_STATES = 30_000
"""States after which the search gives up."""
HASTE = 3
"""How much more the pushes that are left weigh than those that were made; 1 would find the fewest, far slower."""


@dataclass(frozen=True)
class Push:
    """One push of a solution.

    Attributes:
        walk: the moves that bring the player behind the box.
        box: where the box is before.
        way: name of the direction.
    """

    walk: tuple[str, ...]
    box: Cell
    way: str


State = tuple[frozenset[Cell], Cell]
"""Boxes, and the player."""


@functools.lru_cache(maxsize=16384)
def solve(
    floor: frozenset[Cell], goals: frozenset[Cell], boxes: frozenset[Cell], player: Cell
) -> tuple[Push, ...] | None:
    """A solution with few pushes; None when there is none, or none within `MOST_STATES` states."""
    away = distances(floor, goals)
    if any(box not in away for box in boxes):
        return None
    start: State = (boxes, player)
    came: dict[State, tuple[State, Push] | None] = {start: None}
    seen: set[State] = set()
    order = itertools.count()
    queue = [(0, next(order), 0, start)]
    while queue and len(seen) < MOST_STATES:
        _, _, pushes, state = heapq.heappop(queue)
        here, place = state
        reached = walks(floor - here, place)
        # Where a player can walk between two places they are one state.
        region = (here, min(reached))
        if region in seen:
            continue
        seen.add(region)
        if here == goals:
            return _path(came, state)
        for box, name in _possible(floor, here, reached):
            target = moved(box, WAYS[name])
            after: State = (here - {box} | {target}, box)
            if target not in away or after in came:
                continue
            came[after] = (state, Push(_walk(reached, moved(box, WAYS[name], -1)), box, name))
            rest = sum(away[other] for other in after[0])
            heapq.heappush(queue, (pushes + 1 + HASTE * rest, next(order), pushes + 1, after))
    return None


def _possible(
    floor: frozenset[Cell], boxes: frozenset[Cell], reached: dict[Cell, tuple[Cell, str] | None]
) -> Iterator[tuple[Cell, str]]:
    """Pushes that a player makes who reaches these cells, in a fixed order."""
    for box in sorted(boxes):
        for name, way in WAYS.items():
            target = moved(box, way)
            if moved(box, way, -1) in reached and target in floor and target not in boxes:
                yield box, name


def _walk(reached: dict[Cell, tuple[Cell, str] | None], goal: Cell) -> tuple[str, ...]:
    way: list[str] = []
    while (step := reached[goal]) is not None:
        goal, name = step
        way.append(name)
    return tuple(reversed(way))


def _path(came: dict[State, tuple[State, Push] | None], state: State) -> tuple[Push, ...]:
    pushes: list[Push] = []
    while (step := came[state]) is not None:
        state, push = step
        pushes.append(push)
    return tuple(reversed(pushes))
