"""`recipes`: which methods there are on which environments, and what each recipe offers."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from verl_hier.cli.output import line, table

if TYPE_CHECKING:
    from verl_hier.recipe.catalogue import Recipe


def recipes(
    word: Annotated[
        str | None,
        typer.Argument(metavar="[WORD]", help="Show what the recipes with this in their name offer."),
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Only names, one a line.")] = False,
) -> None:
    """List the recipes and the sizes that they offer."""
    from verl_hier.errors import HierError
    from verl_hier.recipe.catalogue import recipes as shipped

    found = [recipe for recipe in shipped() if (word or "") in recipe.name]
    if not found:
        raise HierError(f"no recipe has {word!r} in its name; `verl-hier recipes` lists them all.")
    if names:
        for recipe in found:
            line(recipe.name)
    elif word:
        for recipe in found:
            _offer(recipe)
    else:
        _methods(found)


def _offer(recipe: Recipe) -> None:
    """What a recipe does, and one line for each size that it offers."""
    line(f"{recipe.name}: {recipe.summary}")
    for size in recipe.sizes:
        line(f"  size={size}")
        line(f"    model={' | '.join(recipe.models(size))}")
        line(f"    server={' | '.join(recipe.servers(size))}")


def _methods(found: Sequence[Recipe]) -> None:
    """The environments of each method with the sizes of each recipe, and the recipes that are no product of the two."""
    from verl_hier.recipe.catalogue import SIZES

    environments: dict[str, list[str]] = {}
    for recipe in found:
        if recipe.method_and_environment:
            method, environment = recipe.method_and_environment
            sizes = "" if len(recipe.sizes) == len(SIZES) else f" ({', '.join(recipe.sizes)})"
            environments.setdefault(method, []).append(environment + sizes)
    line("A recipe is called METHOD_ENVIRONMENT, such as himac_alfworld. It offers the")
    line(f"sizes {', '.join(SIZES)}, unless some of them stand behind its environment;")
    line("`verl-hier recipes WORD` shows models and servers of the recipes with that word.\n")
    rows = [(method, ", ".join(sorted(names))) for method, names in sorted(environments.items())]
    table(rows, head=("method", "environments"), width=80)
    for recipe in found:
        if not recipe.method_and_environment:
            line(f"\n{recipe.name}\n{fill(recipe.summary, 80, initial_indent='  ', subsequent_indent='  ')}")
