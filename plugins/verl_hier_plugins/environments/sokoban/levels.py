"""Boards of Sokoban: drawn from a seed, and made by pulling the boxes of the solved board away from their goals.

Cells are pairs (row, column). Whoever repeats the pulls backwards, as pushes, solves the board.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Cell = tuple[int, int]
Name = Literal["tiny", "easy", "medium", "hard"]
WAYS: Mapping[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
WALL_SHARE = 0.18
"""Share of the inner cells that are drawn as walls."""
ATTEMPTS = 500
OUTWARDS = 0.7
"""Share of the pulls that bring a box further from the goals, where there is one that does."""


@dataclass(frozen=True)
class Size:
    """What boards of a level have in common.

    Attributes:
        side: rows and columns, with the walls around the board.
        boxes: number of boxes, and of goals.
        pulls: pulls from the solved board.
        least: pushes that the boxes need at least, each to its nearest goal as if it were alone.
    """

    side: int
    boxes: int
    pulls: int
    least: int


SIZES: Mapping[Name, Size] = {
    "tiny": Size(6, 1, 12, 2),
    "easy": Size(7, 2, 20, 4),
    "medium": Size(8, 3, 30, 7),
    "hard": Size(9, 4, 40, 9),
}


@dataclass(frozen=True)
class Level:
    """A board at its start.

    Attributes:
        side: rows and columns.
        floor: cells that are no wall.
        goals: as many cells as there are boxes.
        boxes, player: where they begin.
    """

    side: int
    floor: frozenset[Cell]
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell


def moved(cell: Cell, way: Cell, steps: int = 1) -> Cell:
    """The cell that many steps further."""
    return cell[0] + steps * way[0], cell[1] + steps * way[1]


def walks(free: Collection[Cell], start: Cell) -> dict[Cell, tuple[Cell, str] | None]:
    """The free cells that a player reaches, each with the cell and the move that lead there by a shortest way."""
    came: dict[Cell, tuple[Cell, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for name, way in WAYS.items():
            there = moved(here, way)
            if there in free and there not in came:
                came[there] = (here, name)
                queue.append(there)
    return came


@functools.lru_cache(maxsize=4096)
def distances(floor: frozenset[Cell], goals: frozenset[Cell]) -> Mapping[Cell, int]:
    """Pushes from a cell to the nearest goal for a box that is alone; a box elsewhere never gets to one."""
    found = dict.fromkeys(goals, 0)
    queue = deque(goals)
    while queue:
        here = queue.popleft()
        for way in WAYS.values():
            # Pulled from here to there by a player who goes one further.
            there = moved(here, way)
            if there in floor and moved(here, way, 2) in floor and there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found


@functools.lru_cache(maxsize=8192)
def generate(name: Name, seed: int) -> Level:
    """The board of a level and a seed.

    Raises:
        RuntimeError: when none of `ATTEMPTS` boards is hard enough, which no seed of the levels above was seen to do.
    """
    size, rng = SIZES[name], random.Random(f"sokoban-{name}-{seed}")
    for _ in range(ATTEMPTS):
        floor = _floor(rng, size.side)
        if len(floor) < 3 * size.boxes + 4:
            continue
        goals = rng.sample(sorted(floor), size.boxes)
        player = rng.choice(sorted(floor - set(goals)))
        level = _pulled(rng, size, floor, frozenset(goals), player)
        away = distances(floor, level.goals)
        if not level.boxes & level.goals and sum(away[box] for box in level.boxes) >= size.least:
            return level
    raise RuntimeError(f"no board for the seed {seed} of the level {name!r} in {ATTEMPTS} attempts")


def _floor(rng: random.Random, side: int) -> frozenset[Cell]:
    """The largest connected part of a room with random walls."""
    inner = [(row, column) for row in range(1, side - 1) for column in range(1, side - 1)]
    left = {cell for cell in inner if rng.random() >= WALL_SHARE}
    parts: list[frozenset[Cell]] = []
    while left:
        parts.append(frozenset(walks(left, min(left))))
        left -= parts[-1]
    return max(parts, key=len, default=frozenset())


def _pulled(rng: random.Random, size: Size, floor: frozenset[Cell], goals: frozenset[Cell], player: Cell) -> Level:
    """The solved board after random pulls."""
    boxes, away = set(goals), distances(floor, goals)
    for _ in range(size.pulls):
        pulls = sorted(_pulls(floor, boxes, player))
        if not pulls:
            break
        # At random alone, boxes come back as often as they leave.
        further = [(box, way) for box, way in pulls if away[moved(box, way)] > away[box]]
        box, way = rng.choice(further if further and rng.random() < OUTWARDS else pulls)
        boxes = boxes - {box} | {moved(box, way)}
        player = moved(box, way, 2)
    return Level(size.side, floor, goals, frozenset(boxes), player)


def _pulls(floor: frozenset[Cell], boxes: Collection[Cell], player: Cell) -> Iterator[tuple[Cell, Cell]]:
    free = floor - set(boxes)
    reached = walks(free, player)
    for box in boxes:
        for way in WAYS.values():
            if moved(box, way) in reached and moved(box, way, 2) in free:
                yield box, way
