"""Which runs were measured on the same tasks: what they reached says something of their recipes only then."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ENVIRONMENT = "hier.environment."
_NAME = f"{ENVIRONMENT}name"
_HELD_OUT = ("data.val_files", "data.val_max_samples")
_REWARDING = ("penalty", "reward")
"""Words in the names of options that change rewards alone."""
_TRAINED = ("data.train_files", "data.train_max_samples")


def alike(recipes: Sequence[Mapping[str, Any]], held_out: bool) -> list[list[int]]:
    """The places of the recipes in groups, each of which has one environment and one set of tasks.

    Args:
        recipes: key to value of composed configurations.
        held_out: whether figures of held-out tasks are compared, else of those in training.
    """
    groups: list[list[int]] = []
    for place, recipe in enumerate(recipes):
        for group in groups:
            if not differing(recipes[group[0]], recipe, held_out):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def differing(one: Mapping[str, Any], other: Mapping[str, Any], held_out: bool) -> list[str]:
    """The keys that give two recipes unlike tasks: the environment, its options except those that only reward,
    and the files or splits that the tasks come from."""
    if one.get(_NAME) != other.get(_NAME):
        return [_NAME]
    keys = [key for key in {**one, **other} if key.startswith(ENVIRONMENT) and not key.endswith(".seed")]
    keys += _HELD_OUT if held_out else _TRAINED
    found = [key for key in keys if not _equal(one.get(key), other.get(key))]
    return [key for key in found if not any(word in key for word in _REWARDING)]


def sentence(recipes: Sequence[Mapping[str, Any]], held_out: bool) -> str:
    """Why the figures of recipes, the first of each group of `alike`, are not compared."""
    names = [str(recipe.get(_NAME)) for recipe in recipes]
    if len(set(names)) == len(names):
        return f"These runs play different tasks ({', '.join(names)}); what they reached is not compared."
    keys = list(dict.fromkeys(key for other in recipes[1:] for key in differing(recipes[0], other, held_out)))
    shown = "; ".join(f"{key}: {', '.join(str(recipe.get(key)) for recipe in recipes)}" for key in keys[:3])
    return f"These runs play different tasks ({shown}); what they reached is not compared."


def _equal(one: Any, other: Any) -> bool:
    """Whether two values of a recipe are equal, or name files of equal content."""
    if one == other:
        return True
    ones, others = ([value] if isinstance(value, str) else value for value in (one, other))
    if not (isinstance(ones, list) and isinstance(others, list) and len(ones) == len(others)):
        return False
    return all(a == b or _same_file(a, b) for a, b in zip(ones, others, strict=True))


def _same_file(one: Any, other: Any) -> bool:
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    first, second = Path(one).expanduser(), Path(other).expanduser()
    try:
        return first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False)
    except (OSError, ValueError):
        return False
