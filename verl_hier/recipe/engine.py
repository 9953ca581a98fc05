"""Which training engine a recipe asks for: verl's own, or the one that forwards every shared token once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENGINE_VARIABLE = "VERL_ENGINE_VENDOR"
"""Environment variable by which verl chooses among the engines of a strategy."""
TREE = "hier_tree"
"""Its value for our engine, which the group `hier/engine: tree` gives to every process of a run."""


def wants_tree(config: Mapping[str, Any]) -> bool:
    """Whether a composed recipe, a `DictConfig` or plain containers, asks for the tree engine."""
    place: Any = config
    for key in ("ray_kwargs", "ray_init", "runtime_env", "env_vars", ENGINE_VARIABLE):
        place = place.get(key) if isinstance(place, Mapping) else None
    return place == TREE
