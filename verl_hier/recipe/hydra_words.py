"""What Hydra and OmegaConf complain of, in words for somebody who writes a recipe."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.specs import KINDS

_NO_CHOICE = re.compile(r"Could not find '([\w./-]+)/([^/']+)'")
_NO_FILE = re.compile(r"Could not (?:find|load) '([^']+)'")
_NO_GROUP = re.compile(r"Error resolving interpolation '\$\{(hier/[\w/]+)\}'")
_NO_OVERRIDE = re.compile(r"Could not override '(hier/[\w/]+)'")
_NO_CONTAINER = re.compile(r"node `(hier\.[\w.]+)` is not a container")
_OPEN = "???"


def sentence(error: Exception) -> str:
    """The lines of a Hydra message that a user can act on, as one."""
    text = str(error)
    if group := _NO_GROUP.search(text):
        return (
            f"the defaults list names no {group[1]}, by which another group of it goes; add `- {group[1]}: …`"
            f"{', or `- hier/base`, which has it' if group[1] in ('hier/critic', 'hier/engine') else ''}."
        )
    lines = [line.strip() for line in text.splitlines()]
    options = _options(lines)
    if (choice := _NO_CHOICE.search(text)) and options:
        return f"{choice[1]}: there is no {choice[2]!r}{did_you_mean(choice[2], options)}; it has {', '.join(options)}."
    if file := _NO_FILE.search(text):
        return f"a defaults list names {file[1]!r}, which is neither of verl, of verl-hier, nor beside the recipe."
    if group := _NO_OVERRIDE.search(text):
        return f"{group[1]}: the recipe's defaults list has no such group; put + before the override to add it."
    kept = [
        line
        for line in lines
        if line and not line.startswith(("full_key:", "object_type=", "reference_type=", "Config search path"))
    ]
    causes = [str(error.__cause__).splitlines()[0]] if error.__cause__ and str(error.__cause__) else []
    unique = list(dict.fromkeys([*kept[:2], *causes])) or [type(error).__name__]
    return " ".join(line if line.endswith((".", "?", "!")) else f"{line}." for line in unique)


def missing_name(error: Exception) -> str | None:
    """The file or choice of a defaults list that Hydra has not found, where it knows no others of its group."""
    text = str(error)
    found = _NO_FILE.search(text)
    return found[1] if found and not _options([line.strip() for line in text.splitlines()]) else None


def unresolved(config: Any, error: Exception) -> RecipeError:
    """The refusal of a composed config whose values do not resolve.

    Args:
        config: the config, an OmegaConf `DictConfig`.
        error: what OmegaConf said.
    """
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=False)
    hier = plain.get("hier") if isinstance(plain, Mapping) else None
    if isinstance(hier, Mapping):
        require_hier_keys(hier)
        for kind in KINDS:
            block = hier.get(kind)
            if isinstance(block, Mapping) and block.get("name") == _OPEN:
                return RecipeError(
                    f"hier.{kind}.name: the recipe names no {kind}; add `- hier/{kind}: …` to its defaults list, or "
                    f"`hier.{kind}.name=…`."
                )
    if block := _NO_CONTAINER.search(str(error)):
        return RecipeError(f"{block[1]}: expected a block, such as `{{name: …}}`, got a single value.")
    return RecipeError(f"the recipe does not resolve: {str(error).splitlines()[0]}.")


def require_hier_keys(block: Mapping[Any, Any]) -> None:
    """Refuse a key of the `hier` block that it does not have, before anything refers to the one that was meant.

    Raises:
        RecipeError: naming the line and the nearest key.
    """
    from verl_hier.recipe.schema import HierConfig

    for line, key, known in _unknown(block, HierConfig, "hier"):
        raise RecipeError(f"{line}.{key}: the {line} block has no key {key!r}{did_you_mean(str(key), known)}.")


def _unknown(block: Mapping[Any, Any], options: type, line: str) -> Iterator[tuple[str, Any, list[str]]]:
    hints = typing.get_type_hints(options)
    for key, inner in block.items():
        if key not in hints:
            yield line, key, list(hints)
        elif dataclasses.is_dataclass(hints[key]) and isinstance(hints[key], type) and isinstance(inner, Mapping):
            yield from _unknown(inner, hints[key], f"{line}.{key}")


def _options(lines: list[str]) -> list[str]:
    """The choices that Hydra lists."""
    start = next((place for place, line in enumerate(lines) if line.startswith("Available options")), None)
    if start is None:
        return []
    listed = lines[start + 1 :]
    end = next((place for place, line in enumerate(listed) if not line or line.startswith("Config search")), None)
    return listed[:end]
