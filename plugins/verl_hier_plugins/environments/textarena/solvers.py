"""Shortest solutions of the puzzles, found by breadth-first search over plain tuples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

S = TypeVar("S", bound=Hashable)
Cell = tuple[int, int]
STEPS: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def search(start: S, moves: Callable[[S], Iterable[tuple[str, S]]], solved: Callable[[S], bool]) -> list[str] | None:
    """The fewest moves to a solved state; None when there is none."""
    came: dict[S, tuple[S, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if solved(state):
            return _way(came, state)
        for move, reached in moves(state):
            if reached not in came:
                came[reached] = (state, move)
                queue.append(reached)
    return None


def _way(came: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    way: list[str] = []
    while (step := came[state]) is not None:
        state, move = step
        way.append(move)
    return way[::-1]


def frozen_lake(game: Any) -> list[str] | None:
    """The shortest way over safe ice."""
    state = game.state.game_state
    grid, size = state["grid"], game.size

    def moves(at: Cell) -> Iterable[tuple[str, Cell]]:
        for name, (down, right) in STEPS.items():
            row, column = at[0] + down, at[1] + right
            if 0 <= row < size and 0 <= column < size and grid[row][column] != "H":
                yield name, (row, column)

    return search(tuple(state["player_pos"]), moves, lambda at: at == tuple(state["goal_pos"]))


def sokoban(game: Any) -> list[str] | None:
    """The fewest steps that move every box to a target."""
    floor = {(int(r), int(c)) for r, c in zip(*(game.room_fixed != 0).nonzero(), strict=True)}
    targets = frozenset((int(r), int(c)) for r, c in zip(*(game.room_fixed == 2).nonzero(), strict=True))
    is_box = (game.room_state == 3) | (game.room_state == 4)
    boxes = frozenset((int(r), int(c)) for r, c in zip(*is_box.nonzero(), strict=True))
    row, column = game.player_position

    def moves(state: tuple[Cell, frozenset[Cell]]) -> Iterable[tuple[str, tuple[Cell, frozenset[Cell]]]]:
        (row, column), boxes = state
        for name, (down, right) in STEPS.items():
            ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if ahead not in boxes:
                if ahead in floor:
                    yield name, (ahead, boxes)
            elif beyond in floor and beyond not in boxes:
                yield name, (ahead, boxes - {ahead} | {beyond})

    return search(((int(row), int(column)), boxes), moves, lambda state: state[1] == targets)


def tower_of_hanoi(game: Any) -> list[str] | None:
    """The fewest moves that bring all disks to tower C."""
    towers = game.state.game_state["towers"]
    names = "ABC"

    def moves(state: tuple[tuple[int, ...], ...]) -> Iterable[tuple[str, tuple[tuple[int, ...], ...]]]:
        for source in range(3):
            for target in range(3):
                if state[source] and source != target and (state[target] or (99,))[-1] > state[source][-1]:
                    after = list(state)
                    after[source], after[target] = state[source][:-1], (*state[target], state[source][-1])
                    yield f"{names[source]} {names[target]}".lower(), tuple(after)

    whole = tuple(range(game.num_disks, 0, -1))
    return search(tuple(tuple(towers[name]) for name in names), moves, lambda state: state[2] == whole)
