"""The options of TextWorldExpress: the schema of `hier.environment` when its name is `textworld_express`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.environments.gym_text import GymOptions
from verl_hier.host.constraints import Count

# Not sorting: its games on one Java machine change one another (textworld-express 1.1.0).
Game = Literal["cookingworld", "twc", "coin", "mapreader", "arithmetic", "simonsays", "peckingorder"]


@dataclass(frozen=True)
class TextworldExpressOptions(GymOptions):
    """Options of the `textworld_express` environment."""

    games: tuple[Game, ...] = ("coin",)
    """Games, of which the tasks have equal shares."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Numbers of a game, by its name, which replace its own: `{coin: {numLocations: 3, includeDoors: 0}}`."""
    observation: Literal["full", "short"] = "full"
    """`full` gives the game's texts; `short` leaves out articles and the like, for small models."""
    describe: bool = True
    """Begin the first observation with the game's description of the task; `{task}` gives it to prompts in any case."""
    java_memory_mb: Count = 400
    """Memory of the Java machine of a process, in MB; all episodes of the process share it."""

    def __post_init__(self) -> None:
        if not self.games:
            raise ValueError("games must name at least one game")
        if other := sorted(set(self.settings) - set(self.games)):
            raise ValueError(f"settings are for {other[0]!r}, which is not among the games {', '.join(self.games)}")
