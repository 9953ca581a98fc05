"""The solver as an expert: it solves the board anew wherever its last solution does not go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from verl_hier_plugins.environments.sokoban.environment import SokobanEnvironment
from verl_hier_plugins.environments.sokoban.levels import WAYS, Cell, moved
from verl_hier_plugins.environments.sokoban.solver import Push, State, solve


class SokobanExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    A subgoal is a straight line along which a box is pushed: `box 2 3 to 2 5`, in rows and columns from 0.
    """

    def __init__(self, environment: SokobanEnvironment) -> None:
        self._environment = environment
        self._solutions: dict[State, tuple[Push, ...] | None] = {}
        self.subgoals: tuple[str, ...] = tuple(map(_said, _runs(self._solution() or ())))

    def advise(self, subgoal: int) -> str | None:
        """The next move; None when the subgoal is reached or the board cannot be solved any more."""
        solution = self._solution()
        # A wrong push makes the rest longer, and the current subgoal is then not reached yet.
        if not solution or len(_runs(solution)) < len(self.subgoals) - subgoal:
            return None
        return solution[0].walk[0] if solution[0].walk else solution[0].way

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """A move that is blocked; None when there is none."""
        blocked = [way for way in WAYS if not self._environment.world.possible(way)]
        return rng.choice(blocked) if blocked else None

    def _solution(self) -> tuple[Push, ...] | None:
        world = self._environment.world
        state: State = (world.boxes, world.player)
        if state not in self._solutions:
            solution = solve(world.level.floor, world.level.goals, *state)
            self._solutions[state] = solution
            for boxes, player, rest in _way(*state, solution or ()):
                self._solutions[boxes, player] = rest
        return self._solutions[state]


def _way(
    boxes: frozenset[Cell], player: Cell, solution: tuple[Push, ...]
) -> Iterator[tuple[frozenset[Cell], Cell, tuple[Push, ...]]]:
    """The states after each move of a solution, with what is left of it there."""
    for number, push in enumerate(solution):
        for step, way in enumerate(push.walk, start=1):
            player = moved(player, WAYS[way])
            yield boxes, player, (replace(push, walk=push.walk[step:]), *solution[number + 1 :])
        boxes, player = boxes - {push.box} | {moved(push.box, WAYS[push.way])}, push.box
        yield boxes, player, solution[number + 1 :]


def _runs(solution: Sequence[Push]) -> list[list[Push]]:
    """The pushes, those together that move one box straight on."""
    runs: list[list[Push]] = []
    for push in solution:
        last = runs[-1][-1] if runs else None
        if last is not None and push.way == last.way and not push.walk and push.box == moved(last.box, WAYS[last.way]):
            runs[-1].append(push)
        else:
            runs.append([push])
    return runs


def _said(run: Sequence[Push]) -> str:
    (row, column), (to_row, to_column) = run[0].box, moved(run[-1].box, WAYS[run[-1].way])
    return f"box {row} {column} to {to_row} {to_column}"
