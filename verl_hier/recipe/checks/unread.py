"""Lines of verl that this recipe leaves without a reader, so that setting them has no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.rule import rule, there, value
from verl_hier.recipe.compose import stock_of
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.pairs import folder
from verl_hier.recipe.verl_lines import READERS, VERL, table

_SELECTED = re.compile(r"\$\{(?:oc\.select:)?(\.?[\w.]+)(?:,\s*([^}]*))?\}")
_GROUPS = ("size", "variant", "critic", "engine", "server", "model", "method", "paper", "policies")
_ANY = object()


@dataclass(frozen=True)
class Unread:
    """A line of verl that somebody has set and nobody reads."""

    sentence: str
    """What is wrong, with the line and what to do."""
    refused: bool
    """Whether the recipe is refused for it."""


@rule
def check_unread(recipe: ComposedRecipe) -> None:
    """Refuse a line that verl reads elsewhere and nothing reads in this recipe, where it changes what its author
    believes is trained; the others are noted."""
    for found in unread(recipe):
        if found.refused:
            raise RecipeError(found.sentence)


@rule
def check_distillation(recipe: ComposedRecipe) -> None:
    """Refuse verl's distillation, whose teacher reads none of our rows."""
    if value(recipe.config, "distillation.enabled"):
        raise RecipeError(
            "distillation.enabled: verl's teacher reads none of our rows; set it to false, and give the roles a "
            "teacher by hier.teachers, such as hier.teachers={one: {model: PATH}}."
        )


def unread(recipe: ComposedRecipe) -> Iterator[Unread]:
    """Every line that somebody has set to something else than verl and our recipes have there, and that nothing reads
    in this recipe."""
    reasons = {name: reader.absent(recipe) for name, reader in READERS.items()}
    default = stock_of(recipe.config)
    for line, name in table().items():
        if name != VERL and reasons[name] and _given(recipe.config, line, default):
            yield Unread(f"{line}: {reasons[name]}.", READERS[name].refused)


def _given(config: Mapping[str, Any], line: str, default: Mapping[str, Any]) -> bool:
    """Whether the line has another value than verl's default and every one that a shipped group gives it."""
    if not there(config, line):
        return False
    found, base = value(config, line), _leaves_of("base.yaml")
    usual = base[line][0] if line in base else _resolved(value(default, line), config, line)
    if found is None or found == usual:
        return False
    return all(ours is not _ANY and ours != found for ours in _shipped().get(line, ()))


def _resolved(default: Any, config: Mapping[str, Any], line: str) -> Any:
    """What verl's default is with the other lines of the recipe."""
    reference = _SELECTED.fullmatch(default) if isinstance(default, str) else None
    if reference is None:
        return default
    other = reference[1]
    if other.startswith("."):
        other = f"{line.rpartition('.')[0]}{other}"
    return value(config, other)


@cache
def _shipped() -> Mapping[str, list[Any]]:
    """Line to the values that the groups of our recipes give it."""
    found: dict[str, list[Any]] = {}
    for group in _GROUPS:
        for line, values in _leaves_of(f"{group}/**/*.yaml").items():
            found.setdefault(line, []).extend(values)
    return found


@cache
def _leaves_of(pattern: str) -> Mapping[str, list[Any]]:
    """Line to the values that the files below `recipes/hier` give it; a value that refers to another line is any."""
    import yaml

    loader, found = getattr(yaml, "CSafeLoader", yaml.SafeLoader), dict[str, list[Any]]()
    for path in Path(folder(), "hier").glob(pattern):
        for line, given in _leaves(yaml.load(path.read_text(), loader) or {}, ""):
            found.setdefault(line, []).append(_as_composed(given))
    return found


def _as_composed(given: Any) -> Any:
    """A value of YAML as OmegaConf reads it, to which 1e-5 is a number."""
    if not isinstance(given, str):
        return given
    if "${" in given:
        return _ANY
    try:
        return float(given)
    except ValueError:
        return given


def _leaves(content: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, inner in content.items():
        if not above and key in ("hier", "defaults"):
            continue
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{above}{key}.")
        else:
            yield f"{above}{key}", inner
