"""The options of TextWorld in a recipe: the schema of `hier.environment` when its name is `textworld`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import Count, NonNegative

FOLDERS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
"""Folders below `data_path` and the split of the games in them."""


@dataclass(frozen=True)
class TextworldOptions:
    """Options of the `textworld` environment."""

    world_size: Count = 3
    """Rooms of a generated world."""
    nb_objects: Count = 5
    """Minimum number of things in a generated world; a quest may add more."""
    quest_length: Count = 3
    """Minimum number of actions of a generated quest."""
    theme: Literal["house", "basic"] = "house"
    """TextWorld's grammar of names and descriptions: `house` has kitchens and keys, `basic` room11 and thing22."""
    instruction: Literal["steps", "goal"] = "steps"
    """`steps` describes every action of the quest, as TextWorld does by default; `goal` only the last one."""
    data_path: str = ""
    """Folder of game files made by `tw-make` (`.json`, and `.z8` beside it), played instead of generated worlds."""
    cache: str = ""
    """Folder of compiled games; empty means `$XDG_CACHE_HOME/verl-hier/textworld`, by default below `~/.cache`."""
    observation: Literal["full", "short"] = "full"
    """`full` plays the compiled game, with its texts and its parser; `short` describes the room, the thing or the
    inventory in few words, and needs no compiler."""
    show_admissible: bool = False
    """Append the admissible commands to each observation."""
    pool: int = 200
    """Tasks in the training split; 0 means all games of `data_path`."""
    validation: int = 50
    """Tasks in each held-out split; 0 means all games of `data_path`."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint for every seed."""
    max_steps: Count = 50
    """Commands after which an episode is truncated."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a command that has no effect in the game's logic."""

    def __post_init__(self) -> None:
        least = 0 if self.data_path else 1
        for name in ("pool", "validation"):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
