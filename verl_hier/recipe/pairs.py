"""Recipes as pairs of a method and an environment, from one table instead of one file for each.

A recipe `METHOD_ENVIRONMENT` has no file of its own: its text is made from `recipes/catalogue.yaml`, which says what a
method is called, what its agents are told, and what a pair has of its own. A pair that is not in the table has a text
too, and the checks say whether it can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.installed import package_folder
from verl_hier.recipe.yaml_files import read_yaml

PACKAGE = "verl_hier_recipes"
TABLE = "catalogue.yaml"
REFUSED = "refused_pairs.yaml"
PROMPTS = "game"
"""The choice of `hier/prompt` that leaves the worker's own prompts."""
SHARED = "react"
"""Prompts with which the small model of an environment and a worker is the same for all methods."""
SCALES = ("tiny", "full", "small_chat")
"""Blocks that a file of a group may have: for a model trained from scratch, for instruction-tuned ones, and for a small
one of these."""
FORMS = ("shared", "separate", "adapters", "frozen")
"""Further blocks, by the choice of `hier/policies`: the roles share one model, have weights of their own, have adapters
of their own, or are played by a model that never learns."""
BLOCKS = (*SCALES, *FORMS)
"""The blocks of a file that are choices of groups of their own."""


def folder() -> Path:
    """The folder of the shipped recipes."""
    return package_folder(PACKAGE)


def table_file() -> Path:
    """The file of the table."""
    return folder() / TABLE


def scales_of(file: Path) -> frozenset[str]:
    """The scales for which a file of a group has a block; empty where there is no such file."""
    return blocks_of(file) & frozenset(SCALES)


@cache
def blocks_of(file: Path) -> frozenset[str]:
    """The scales and the choices of `hier/policies` for which a file of a group has a block."""
    if not file.is_file():
        return frozenset()
    _, content = read_yaml(file)
    return frozenset(content or ()) & frozenset(BLOCKS)


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """The table by its four blocks: environments, methods, prompts, settings."""
    _, content = read_yaml(table_file())
    assert isinstance(content, dict)
    return content


def tried() -> Iterator[str]:
    """The names of the pairs that were trained, by method."""
    for method, row in table()["methods"].items():
        yield from (f"{method}_{environment}" for environment in row["tried"])


@cache
def refused() -> Mapping[str, str]:
    """Why the pairs that cannot run are refused, as `scripts/pairs.py` has recorded it."""
    _, content = read_yaml(Path(__file__).with_name(REFUSED))
    return content or {}


@cache
def by_name() -> Mapping[str, tuple[str, str]]:
    """Method and environment of every pair, by the name of its recipe."""
    methods, environments = table()["methods"], table()["environments"]
    return {f"{method}_{environment}": (method, environment) for method in methods for environment in environments}


def pair_of(name: str) -> tuple[str, str] | None:
    """Method and environment of a recipe's name; None where it is no pair of the table."""
    return by_name().get(name)


def joined(recipe: str | None, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The name of a recipe that may be given in two words, as method and environment, and the words behind it.

    Args:
        recipe: the first word: a recipe, the path of a file, or a method; None where none was given.
        words: the words behind it; the first is an environment where `recipe` is a method.

    Raises:
        RecipeError: when a method stands without an environment.
    """
    if recipe not in table()["methods"]:
        return recipe, [*words]
    environments = table()["environments"]
    if words and words[0] in environments:
        return f"{recipe}_{words[0]}", [*words[1:]]
    near = did_you_mean(words[0], environments) if words and "=" not in words[0] else ""
    raise RecipeError(
        f"{recipe} is a method, and a recipe is a method on an environment{near}: `{recipe} ENVIRONMENT`, where "
        f"ENVIRONMENT is one of {', '.join(environments)}."
    )


def require_needs(name: str) -> None:
    """Refuse a pair whose method needs something of an environment that this one does not have.

    Raises:
        RecipeError: naming what is needed, and the environments that have it.
    """
    method, environment = by_name()[name]
    needs = table()["methods"][method].get("needs")
    if needs and environment not in needs["found_in"]:
        raise RecipeError(
            f"{method} needs {needs['what']}, which {environment} does not have; it goes with "
            f"{', '.join(needs['found_in'])}."
        )


def prompt_of(method: str, environment: str) -> str:
    """The choice of `hier/prompt` of a pair."""
    files = table()["prompts"].get(table()["methods"][method]["prompts"], {})
    return str(files.get(environment, files.get("any", PROMPTS)))


def text_of(name: str, size: str) -> str:
    """The YAML of a pair, as a recipe file of one's own would say it.

    Args:
        name: `METHOD_ENVIRONMENT`, one that `pair_of` knows.
        size: the choice of `hier/size` without an override.
    """
    import yaml

    method, environment = by_name()[name]
    row = table()["methods"][method]
    about = f": {row['about']}" if "about" in row else ""
    settings = table()["settings"].get(name, {})
    block = settings.get("hier", {})
    note = {"name": name, **({"only_servers": row["servers"]} if "servers" in row else {}), **block.get("recipe", {})}
    own: dict[str, Any] = {**settings, "hier": {**block, "recipe": note}}
    if row["prompts"] != SHARED and environment not in row["tried"]:
        # Other roles or prompts than those of another method with this worker: a small model of its own.
        own["hier"]["coldstart"] = {"name": name}
    return (
        f"# {row['title']} on {table()['environments'][environment]}{about}.\n"
        "defaults:\n"
        "  - ppo_trainer\n"
        "  - hier/base\n"
        f"  - hier/method: {method}\n"
        f"  - hier/environment: {environment}\n"
        f"  - hier/prompt: {prompt_of(method, environment)}\n"
        f"  - hier/size: {size}\n"
        "  - hier/variant: ${hier/size}\n"
        "  - _self_\n"
        "\n"
        f"{yaml.safe_dump(own, sort_keys=False, allow_unicode=True)}"
    )
