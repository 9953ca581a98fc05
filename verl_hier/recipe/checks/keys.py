"""Lines of a recipe that verl would ignore or cannot read: values left open, unknown keys, values of another kind."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.compose import stock_of
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.verl_facts.config_classes import config_classes

MISSING = "???"
OPEN = {
    "hier",
    "ray_kwargs.ray_init",
    "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.actor.profiler",
    "actor_rollout_ref.ref.profiler",
    "critic.profiler",
    "global_profiler",
}
"""Blocks that are passed on to something other than verl, which knows more keys than verl's own configuration shows."""
OURS = {"data.hier"}
"""Keys that verl-hier adds to a block of verl."""
UNUSED = ("reward.reward_model", "reward_model", "distillation")
"""Blocks in which verl itself leaves values open, and which it reads only when they are enabled."""
_TASKS = "TaskDataset"


@rule
def check_open_values(recipe: ComposedRecipe) -> None:
    """Refuse a value that is left open (`???`)."""
    for line, given in _leaves(recipe.config, ""):
        if given == MISSING and not line.startswith(UNUSED):
            raise left_open(line)


def left_open(line: str) -> RecipeError:
    """The refusal of a value that is left open."""
    # `data.hier` repeats the hier block, see recipes/hier/base.yaml.
    line = line.removeprefix("data.") if line.startswith("data.hier.") else line
    return RecipeError(f"{line}: the recipe leaves this value to you; add `{line}=…`.")


@rule
def check_keys(recipe: ComposedRecipe) -> None:
    """Refuse a key that verl does not have in this place, which it would ignore or stumble over."""
    config = recipe.config
    known = stock_of(config)
    with config_classes():
        for line, near in _unknown(config, known, "", _own_data(config)):
            block, _, key = line.rpartition(".")
            raise RecipeError(f"{line}: {block or 'the config'} of verl has no key {key!r}{did_you_mean(key, near)}.")


@rule
def check_kinds(recipe: ComposedRecipe) -> None:
    """Refuse a value of another kind than verl's default: a word where verl has true or false, a list where it has a
    word, a single value where it has a block."""
    for line, default in _leaves(stock_of(recipe.config), "", blocks=True):
        given = value(recipe.config, line)
        if given is None or default is None or default == MISSING:
            continue
        expected = _kind(default)
        fits = _kind(given) == expected or (expected == "a block" and given == {})
        if expected in ("true or false", "a block", "a list") and not fits:
            # Lists of files and loggers may be single names.
            if expected == "a list" and isinstance(given, str) and line == "trainer.logger":
                continue
            raise RecipeError(f"{line}: expected {expected}, got {given!r}.")


def _kind(given: Any) -> str:
    if isinstance(given, bool):
        return "true or false"
    if isinstance(given, Mapping):
        return "a block"
    return "a list" if isinstance(given, list | tuple) else "a single value"


def _own_data(config: Mapping[str, Any]) -> bool:
    """Whether the `data` block is read by verl and us alone; a data set of the user's own may read more keys."""
    return value(config, "data.custom_cls.name") in (None, _TASKS)


def _unknown(
    given: Mapping[str, Any], known: Mapping[str, Any], line: str, own_data: bool
) -> Iterator[tuple[str, list[str]]]:
    """Lines of keys that verl does not have, and the keys that it has beside them."""
    fields = _fields(str(given.get("_target_") or known.get("_target_") or ""))
    for key, inner in given.items():
        here = f"{line}.{key}" if line else str(key)
        if here in OPEN or here in OURS or (line == "data" and not own_data):
            continue
        if key not in known:
            if key not in fields and key != "_target_":
                yield here, [*map(str, known), *fields]
        elif isinstance(inner, Mapping) and isinstance(known[key], Mapping) and known[key]:
            yield from _unknown(inner, known[key], here, own_data)


@cache
def _fields(target: str) -> tuple[str, ...]:
    """Fields of verl's dataclass of a block."""
    module, _, name = target.rpartition(".")
    if not module:
        return ()
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return ()
    return tuple(field.name for field in dataclasses.fields(found)) if dataclasses.is_dataclass(found) else ()


def _leaves(config: Mapping[str, Any], above: str, blocks: bool = False) -> Iterator[tuple[str, Any]]:
    """(recipe line, value) of every value, lists as one; with `blocks` also of every block."""
    for key, inner in config.items():
        line = f"{above}.{key}" if above else str(key)
        if isinstance(inner, Mapping):
            if blocks:
                yield line, inner
            yield from _leaves(inner, line, blocks)
        else:
            yield line, inner
