"""Sokoban as a text environment: the board, what is read of it, and its tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.expert import Expert
from verl_hier.environments.gym_text import GymText, TextView, seeded_tasks
from verl_hier_plugins.environments.sokoban.levels import WAYS, Level, generate, moved
from verl_hier_plugins.environments.sokoban.options import SokobanOptions

DATA_SOURCE = "sokoban"
INSTRUCTION = "push every box onto a goal"
WALL, FLOOR, GOAL, BOX, BOX_ON_GOAL, PLAYER, PLAYER_ON_GOAL = "#_.$*@+"
MEANING = {
    **{WALL: "wall", FLOOR: "floor", GOAL: "goal", BOX: "box"},
    **{BOX_ON_GOAL: "box on a goal", PLAYER: "you", PLAYER_ON_GOAL: "you on a goal"},
}
WORDS = {**MEANING, BOX_ON_GOAL: "home", PLAYER: "me", PLAYER_ON_GOAL: "here"}
"""A word for each cell, for models that read nothing else."""


class Sokoban:
    """The game, with gymnasium's `reset` and `step`. An observation is the rows of the board.

    Attributes:
        level: the board at its start.
        boxes, player: where they are.
        shown: the rows before the last move; none at the start.
    """

    level: Level

    def __init__(self, options: SokobanOptions) -> None:
        self._options = options

    def __deepcopy__(self, memo: dict[int, object]) -> Sokoban:
        """Nothing that it refers to ever changes."""
        twin = Sokoban(self._options)
        twin.__dict__.update(vars(self))
        return twin

    def reset(self, *, seed: int) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The board of a seed."""
        self.level = generate(self._options.level, seed)
        self.boxes, self.player = self.level.boxes, self.level.player
        self.shown: tuple[str, ...] = ()
        return self.rows(), {}

    def step(self, way: str) -> tuple[tuple[str, ...], float, bool, bool, dict[str, Any]]:
        """Walk or push; the move has to be possible."""
        self.shown, before = self.rows(), self.reached
        self.player = moved(self.player, WAYS[way])
        if self.player in self.boxes:
            self.boxes = self.boxes - {self.player} | {moved(self.player, WAYS[way])}
        options, solved = self._options, self.solved
        reward = options.box_reward * (self.reached - before) + options.finish_reward * solved - options.step_penalty
        return self.rows(), reward, solved, False, {}

    @property
    def reached(self) -> int:
        """Number of boxes on goals."""
        return len(self.boxes & self.level.goals)

    @property
    def solved(self) -> bool:
        """Whether every box is on a goal."""
        return self.boxes == self.level.goals

    def possible(self, way: str) -> bool:
        """Whether a move changes anything."""
        ahead, beyond = moved(self.player, WAYS[way]), moved(self.player, WAYS[way], 2)
        free = self.level.floor - self.boxes
        return ahead in free or (ahead in self.boxes and beyond in free)

    def rows(self) -> tuple[str, ...]:
        """The board, a sign for each cell."""
        side = range(self.level.side)
        return tuple("".join(self._sign((row, column)) for column in side) for row in side)

    def _sign(self, cell: tuple[int, int]) -> str:
        if cell not in self.level.floor:
            return WALL
        on_goal = cell in self.level.goals
        if cell == self.player:
            return PLAYER_ON_GOAL if on_goal else PLAYER
        if cell in self.boxes:
            return BOX_ON_GOAL if on_goal else BOX
        return GOAL if on_goal else FLOOR


class SokobanView(TextView):
    """The board in signs."""

    def __init__(self, options: SokobanOptions) -> None:
        self._options = options

    def text(self, world: Sokoban, observation: tuple[str, ...], info: Mapping[str, Any]) -> str:
        """The board, or what changed of it."""
        words = self._options.layout == "words"
        rows = [" ".join(WORDS[sign] for sign in row) if words else row for row in observation]
        if self._options.board == "changes" and world.shown:
            changed = (n for n, row in enumerate(observation) if row != world.shown[n])
            rows = [f"row {number} {rows[number]}" for number in changed]
        return (" | " if words else "\n").join(rows)

    def actions(self, world: Sokoban) -> Mapping[str, str]:
        """The ways that are not blocked."""
        return {way: way for way in WAYS if world.possible(way)}

    def anchor(self, world: Sokoban) -> str:
        """The board says all."""
        return "\n".join(world.rows())

    def instruction(self, world: Sokoban) -> str:
        """The same for all boards."""
        return INSTRUCTION

    def won(self, world: Sokoban, reward: float, ended: bool) -> bool:
        """A board ends when it is solved."""
        return ended

    def score(self, world: Sokoban, won: bool) -> float:
        """The share of the boxes that are on goals."""
        return world.reached / len(world.boxes)

    def facts(self, world: Sokoban) -> Mapping[str, Any]:
        """What the signs mean."""
        signs = WORDS if self._options.layout == "words" else {sign: sign for sign in MEANING}
        return {"legend": ", ".join(f"{signs[sign]} = {meaning}" for sign, meaning in MEANING.items())}


class SokobanEnvironment(GymText):
    """One board."""

    def __init__(self, options: SokobanOptions) -> None:
        super().__init__(lambda task: Sokoban(options), SokobanView(options), options)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A solver. It sees the whole board, so the arguments have no effect."""
        from verl_hier_plugins.environments.sokoban.expert import SokobanExpert

        return SokobanExpert(self)

    def vocabulary(self) -> list[str]:
        """The words of cells, the moves, the rows, and the numbers in the expert's subgoals."""
        numbers = [f"{word}{number}" for number in range(10) for word in ("", "row ", "box ", "to ")]
        return [INSTRUCTION, *WORDS.values(), *WAYS, *numbers]


def tasks(options: SokobanOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, seed, id}`, each with a board of its own."""
    return seeded_tasks(SokobanEnvironment(options), options, split, DATA_SOURCE)
