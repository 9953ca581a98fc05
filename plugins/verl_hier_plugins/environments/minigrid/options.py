"""The options of MiniGrid in a recipe: the schema of `hier.environment` when its name is `minigrid`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.environments.gym_text import GymOptions


@dataclass(frozen=True)
class MinigridOptions(GymOptions):
    """Options of the `minigrid` environment."""

    levels: tuple[str, ...] = ("BabyAI-GoToLocal-v0",)
    """Names of worlds in gymnasium's list, of which the tasks have equal shares: `BabyAI-PickupLoc-v0`,
    `MiniGrid-DoorKey-6x6-v0`."""
    reward: Literal["world", "won"] = "world"
    """`world` is MiniGrid's own at the end, which is less for a longer way: 1 minus 0.9 times the share of the steps
    that MiniGrid allows; `won` is 1 or 0."""

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("levels must name at least one world, such as BabyAI-GoToLocal-v0")
