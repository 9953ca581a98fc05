"""What a recipe file of a user's own needs before Hydra can compose it into something of verl-hier."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.specs import KINDS
from verl_hier.recipe.catalogue import Recipe
from verl_hier.recipe.pairs import folder

_FIRST = "defaults: [ppo_trainer, hier/base, …, _self_]"
_PART_WORD = re.compile(rf"\+{{0,2}}hier\.({'|'.join(KINDS)})=([^{{].*)")


def require_list(recipe: Recipe) -> None:
    """Refuse a file that is empty, or whose defaults list is none.

    Raises:
        RecipeError: naming the file and what it begins with.
    """
    if recipe.content is None:
        raise RecipeError(f"{recipe.path} is empty; a recipe begins with `{_FIRST}`.")
    if not isinstance(recipe.content, Mapping):
        raise RecipeError(f"{recipe.path} is no mapping of keys to values; a recipe begins with `{_FIRST}`.")
    defaults = recipe.content.get("defaults", [])
    if not isinstance(defaults, list):
        raise RecipeError(f"{recipe.path}: `defaults` is no list; a recipe begins with `{_FIRST}`.")
    for entry in defaults:
        if not isinstance(entry, str) and not (isinstance(entry, Mapping) and len(entry) == 1):
            raise RecipeError(
                f"{recipe.path}: {entry!r:.60} in the defaults list is neither the name of a file nor one group with "
                "its choice; write a line for each, such as `- hier/method: grpo`."
            )
        for group, choice in entry.items() if isinstance(entry, Mapping) else ():
            if choice is None and str(group).startswith("hier/"):
                raise RecipeError(
                    f"{recipe.path}: the defaults list names no choice for `{group}`; write `- {group}: …`, or take "
                    "the line away."
                )


def unknown_name(recipe: Recipe, missing: str, stock: Path) -> RecipeError:
    """The refusal of a name in a defaults list that Hydra has not found: with its line, and the nearest one.

    Args:
        recipe: a file of a user's own.
        missing: the name, of a file or of a choice behind its group, as Hydra has it.
        stock: the folder of verl's configs.
    """
    ours = [path.relative_to(folder()).with_suffix("") for path in (folder() / "hier").rglob("*.yaml")]
    known = [*map(_as_written, ours), *(path.stem for path in stock.glob("*.yaml"))]
    near = did_you_mean(_as_written(Path(missing)), known)
    text, listed = recipe.path.read_text(encoding="utf-8"), [Path(missing).name, Path(missing).parent.name]
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if all(word in line for word in listed)]
    where = f":{lines[0]}" if lines else ""
    return RecipeError(
        f"{recipe.path}{where}: the defaults list names {missing!r}{near}, which is neither of verl, of verl-hier, nor "
        "beside the recipe."
    )


def _as_written(path: Path) -> str:
    """A config as a defaults list names it: `hier/base`, or `hier/method: grpo`."""
    return str(path) if len(path.parts) < 3 else f"{path.parent}: {path.name}"


def require_base(recipe: Recipe, composed: Any) -> None:
    """Refuse a composed recipe that has nothing of verl's configuration, or nothing of `hier/base`.

    Raises:
        RecipeError: naming what its defaults list lacks.
    """
    named = [*_named(recipe.content.get("defaults", []))] if isinstance(recipe.content, Mapping) else []
    if "ppo_trainer" not in named and any(key not in composed for key in ("model_engine", "transfer_queue")):
        raise RecipeError(
            f"{recipe.path}: the defaults list lacks `ppo_trainer`, verl's own configuration; put it first: `{_FIRST}`."
        )
    data = composed.get("data")
    if "hier" in composed and "base" not in named and isinstance(data, Mapping) and "hier" not in data:
        raise RecipeError(
            f"{recipe.path}: the defaults list lacks `hier/base`, which lets verl's trainer read the hier block; put "
            f"it after ppo_trainer: `{_FIRST}`."
        )


def require_part_blocks(overrides: Sequence[str]) -> None:
    """Refuse `hier.worker=react`, which replaces the block of a part by a word, and a variant beside the size.

    Raises:
        RecipeError: with the override that was meant.
    """
    for override in overrides:
        if override.startswith("hier/variant="):
            raise RecipeError(f"{override}: the variant of tasks and prompts goes by the size; choose `size=…` alone.")
        found = _PART_WORD.fullmatch(override)
        if found:
            raise RecipeError(
                f"hier.{found[1]}: {found[2]!r:.60} is no block; write `hier.{found[1]}={{name: {found[2]:.60}}}` for "
                f"another {found[1]}, or `hier.{found[1]}.option=…` for an option."
            )


def _named(defaults: Sequence[Any]) -> Iterator[str]:
    """The configs and groups of a defaults list, ours without `hier/`."""
    for entry in defaults:
        if isinstance(entry, Mapping):
            yield from (str(key).removeprefix("override ").strip("/").removeprefix("hier/") for key in entry)
        else:
            yield str(entry).strip("/").removeprefix("hier/")
