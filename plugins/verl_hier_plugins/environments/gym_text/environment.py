"""A world by its import path, told by a view of the user's or as Python prints it."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from verl_hier.environments.gym_text import GymText, TextView, seeded_tasks
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.gym_text.options import GymTextOptions

DATA_SOURCE = "gym_text"


class Plain(TextView):
    """The observation as Python prints it, and the numbered actions of a discrete space by their names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def actions(self, world: Any) -> Mapping[str, Any]:
        """See `TextView.actions`; all of them, as nothing says which are possible now."""
        space: Any = getattr(world, "action_space", None)
        if self._names and space is None:
            return {name: number for number, name in enumerate(self._names)}
        count = getattr(space, "n", None)
        # An action of gymnasium's MultiBinary, which has `n` as well, is an array of this shape.
        shape: Any = getattr(space, "shape", None)
        if not isinstance(count, Integral) or shape:
            raise RecipeError(
                f"hier.environment.view: the actions of this world are {space}, not the numbers of a Discrete space; "
                "name a view whose `action` says what a text means, or list their names in `actions` where the world "
                "has no action_space."
            )
        if self._names and len(self._names) != count:
            raise RecipeError(
                f"hier.environment.actions: this world has {count} actions, and {len(self._names)} names are listed."
            )
        start: int = getattr(space, "start", 0)
        names = self._names or [str(number) for number in range(start, start + int(count))]
        return {name: number for number, name in enumerate(names, start)}


def build(options: GymTextOptions) -> GymText:
    """The environment of these options.

    Raises:
        RecipeError: when the world or its view cannot be imported, or the world cannot be made.
    """
    make = _named("world", options.world)
    view = _named("view", options.view)() if options.view else Plain(options.actions)
    if not isinstance(view, TextView):
        raise RecipeError(
            f"hier.environment.view: {options.view} makes a {type(view).__name__}; derive it from "
            "verl_hier.environments.gym_text.TextView."
        )

    def world(task: Mapping[str, Any]) -> Any:
        try:
            return make(**options.settings)
        except Exception as error:
            raise RecipeError(
                f"hier.environment.world: {options.world} cannot be made with these `settings` "
                f"({type(error).__name__}: {error})."
            ) from error

    return GymText(world, view, options, copies=options.fork == "copy")


def tasks(options: GymTextOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, seed, id}`."""
    found = seeded_tasks(build(options), options, split, DATA_SOURCE)
    return [{**task, "instruction": options.instruction or task["instruction"]} for task in found]


def _named(option: str, path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"hier.environment.{option}: {path} cannot be imported ({error}); install its package, or put its folder "
            "on PYTHONPATH."
        ) from error
