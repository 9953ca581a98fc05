"""The options of a world by its import path: the schema of `hier.environment` when its name is `gym_text`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.environments.gym_text import GymOptions


@dataclass(frozen=True, kw_only=True)
class GymTextOptions(GymOptions):
    """Options of the `gym_text` environment."""

    world: str
    """`package.module:name` of a class or function that makes a world; `gymnasium:make` needs an `id` in `settings`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for it."""
    view: str = ""
    """`package.module:name` of a `verl_hier.environments.gym_text.TextView`, which tells the world in words. Empty: an
    observation is shown as Python prints it, and the actions are those of `actions`."""
    actions: tuple[str, ...] = ()
    """Without a view: what is said for the actions 0, 1, … of the world; empty: their numbers."""
    instruction: str = ""
    """What a task asks for; empty: what the view says."""
    fork: Literal["copy", "replay"] = "replay"
    """`copy` forks by Python's `copy.deepcopy` of the world, which has to make an independent one; `replay` begins it
    again and repeats the actions."""

    def __post_init__(self) -> None:
        for name in ("world", "view"):
            module, _, found = getattr(self, name).partition(":")
            if (name == "world" or getattr(self, name)) and not (module and found):
                raise ValueError(f"{name} has to be an import path package.module:name, got {getattr(self, name)!r}")
        if self.view and self.actions:
            raise ValueError("actions are those of the view where there is one; leave one of the two out")
