"""The options of Sokoban in a recipe: the schema of `hier.environment` when its name is `sokoban`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.environments.gym_text import GymOptions
from verl_hier.host.constraints import NonNegative
from verl_hier_plugins.environments.sokoban.levels import Name


@dataclass(frozen=True)
class SokobanOptions(GymOptions):
    """Options of the `sokoban` environment."""

    level: Name = "easy"
    """Size of the board with its walls, boxes, and pushes that they need at least: `tiny` 6 by 6, one box, 2 pushes;
    `easy` 7 by 7, two boxes, 4; `medium` 8 by 8, three boxes, 7; `hard` 9 by 9, four boxes, 9."""
    board: Literal["always", "changes"] = "always"
    """`changes` shows the whole board once, and then only the rows that changed."""
    layout: Literal["lines", "words"] = "lines"
    """`lines` writes a row of the board in a line, without gaps; `words` writes all in one line with a word for each
    cell, for models that read words."""
    step_penalty: NonNegative = 0.1
    """Subtracted from the reward of every move."""
    box_reward: NonNegative = 1.0
    """Reward of a box that reaches a goal, subtracted when it leaves one."""
    finish_reward: NonNegative = 10.0
    """Reward of the last box that reaches its goal, on top of `box_reward`."""
