"""What a recipe can say about TextWorld: the schema of `hier.environment` when its name is `textworld`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FOLDERS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
"""Folders below `data_path` that decide the split of their games."""


@dataclass(frozen=True)
class TextworldOptions:
    """Options of the `textworld` environment."""

    world_size: int = 3
    """Rooms of a generated world."""
    nb_objects: int = 5
    """Things in a generated world, at least; a quest that needs more brings them."""
    quest_length: int = 3
    """Actions that a generated quest takes at least."""
    theme: Literal["house", "basic"] = "house"
    """TextWorld's grammar of names and descriptions: `house` has kitchens and keys, `basic` room11 and thing22."""
    instruction: Literal["steps", "goal"] = "steps"
    """`steps` tells every action of the quest, as TextWorld does by default; `goal` only the last."""
    data_path: str = ""
    """Folder of game files made by `tw-make` (`.json`, and `.z8` beside it), played instead of generated worlds."""
    cache: str = ""
    """Folder of compiled games; empty means `$XDG_CACHE_HOME/verl-hier/textworld`, by default below `~/.cache`."""
    observation: Literal["full", "short"] = "full"
    """`full` says what the compiled game says and understands what it understands; `short` says the room, the thing or
    what is carried in few words, and needs no compiler."""
    show_admissible: bool = False
    """Append the admissible commands to each observation."""
    pool: int = 200
    """Tasks in the training split; 0 means all games of `data_path`."""
    validation: int = 50
    """Tasks in each held-out split; 0 means all games of `data_path`."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint whatever the seeds are."""
    max_steps: int = 50
    """Commands after which the world cuts an episode (`truncated`)."""
    invalid_penalty: float = 0.02
    """Subtracted from the reward of a command that does nothing in the game's logic."""

    def __post_init__(self) -> None:
        for name in ("world_size", "nb_objects", "quest_length", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        least = 0 if self.data_path else 1
        for name in ("pool", "validation"):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.invalid_penalty < 0:
            raise ValueError(f"invalid_penalty is subtracted, so it must not be negative; got {self.invalid_penalty}")
