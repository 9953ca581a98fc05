"""The options of ALFWorld in a recipe: the schema of `hier.environment` when its name is `alfworld`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import Count, NonNegative, Positive

GOAL_TYPES = ("pick", "clean", "heat", "cool", "look", "two")
"""The six goal types, by short name; `world.GOALS` maps them to ALFWorld's own names."""

SPLITS = {"train": "train"} | dict.fromkeys(("val", "valid_seen"), "valid_seen")
SPLITS |= dict.fromkeys(("test", "valid_unseen"), "valid_unseen")
"""The names of splits, and ALFWorld's name of each."""

LEVELS: dict[str, tuple[int, int]] = {"tiny": (5, 5), "small": (8, 8), "room": (14, 14)}
"""Receptacles and objects of a generated world. A model of 200k parameters can learn `tiny` on a CPU."""


@dataclass(frozen=True)
class AlfworldOptions:
    """Options of the `alfworld` environment."""

    source: Literal["generated", "dataset"] = "generated"
    """`generated` builds worlds from a seed and needs no download; `dataset` plays ALFWorld's own games."""
    data: str = ""
    """Root of ALFWorld's download: the directory that holds `json_2.1.1`, or that directory itself. Empty means
    `$ALFWORLD_DATA`, then ALFWorld's cache. Only for `source: dataset`."""
    goal_types: tuple[str, ...] = ("pick", "clean", "heat", "cool")
    """The goal types that may occur, of pick, clean, heat, cool, look and two."""
    goals: int | tuple[int, ...] = 1
    """Number of goals that a generated task joins ("A then B"); a list mixes task sizes evenly."""
    level: Literal["tiny", "small", "room"] = "tiny"
    """Preset for the size of generated worlds, see `LEVELS`."""
    receptacles: int | None = None
    """Receptacles of a generated world; overrides the level."""
    objects: int | None = None
    """Objects of a generated world; overrides the level."""
    pool: int = 480
    """Tasks in the training split; 0 means all games of a data set."""
    validation: int = 64
    """Tasks in each held-out split; 0 means all games of a data set."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint for every seed."""
    max_steps: Count = 50
    """Steps after which an episode is truncated."""
    observation: Literal["full", "short"] = "full"
    """`full` gives ALFWorld's own texts; `short` drops articles and repeated sentences."""
    show_admissible: bool = False
    """Append the admissible commands to each observation."""
    win_reward: Positive = 1.0
    """Reward of the action that wins."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of an action that is not admissible, and so from the return. What a wrong format costs
    is said by `format_penalty` of the worker or of the estimator."""
    anchor: Literal["state", "text"] = "state"
    """What names a state for estimators that compare turns from equal states: `state` is all that the game's logic can
    tell apart; `text` is the game's last answer as it stands, so that "Nothing happens." is one state."""

    def __post_init__(self) -> None:
        unknown = [t for t in self.goal_types if t not in GOAL_TYPES]
        if unknown or not self.goal_types:
            raise ValueError(f"goal_types must name some of {', '.join(GOAL_TYPES)}; got {list(self.goal_types)}")
        if not self.goal_counts or min(self.goal_counts) < 1:
            raise ValueError(f"goals must be at least 1, got {self.goals}")
        if set(self.goal_types) == {"look"} and max(self.goal_counts) > 1:
            raise ValueError("goals > 1 with goal_types [look] cannot be solved: looking needs the only free hand")
        if self.source == "generated":
            if self.size[0] < 5:
                raise ValueError(f"receptacles must be at least 5 (three appliances and two more), got {self.size[0]}")
            needed = max(self.goal_counts) * (1 + ("two" in self.goal_types)) + ("look" in self.goal_types)
            if self.size[1] < needed:
                raise ValueError(f"objects must be at least {needed} for these goals, got {self.size[1]}")
            if self.pool < 1 or self.validation < 1:
                raise ValueError("pool and validation must be at least 1 for generated tasks")

    @property
    def goal_counts(self) -> tuple[int, ...]:
        """`goals` as a tuple."""
        return (self.goals,) if isinstance(self.goals, int) else tuple(self.goals)

    @property
    def size(self) -> tuple[int, int]:
        """Receptacles and objects of a generated world."""
        receptacles, objects = LEVELS[self.level]
        return (
            receptacles if self.receptacles is None else self.receptacles,
            objects if self.objects is None else self.objects,
        )
