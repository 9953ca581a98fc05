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
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="Every method with every environment: tried, composing, or why it is refused."),
    ] = False,
) -> None:
    """List the recipes and the sizes that they offer."""
    from verl_hier.errors import HierError
    from verl_hier.recipe.catalogue import recipes as shipped

    if pairs:
        return _pairs(word or "")
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


def _pairs(word: str) -> None:
    """The pairs with a word in their name and why some are refused; without a word, a table of all."""
    from verl_hier.errors import HierError
    from verl_hier.recipe import pairs

    refused, tried = pairs.refused(), set(pairs.tried())
    found = [(name, pair) for name, pair in pairs.by_name().items() if word in name]
    if not found:
        raise HierError(
            f"no method and environment make a name with {word!r}; `verl-hier recipes --pairs` has them all."
        )
    if word:
        for name, _ in found:
            line(f"{name}: {'tried' if name in tried else refused.get(name, 'composes')}")
        return
    marks: dict[str, dict[str, str]] = {}
    for name, (method, environment) in found:
        marks.setdefault(method, {})[environment] = "tried" if name in tried else "" if name in refused else "+"
    environments = list(pairs.table()["environments"])
    # The names of environments would be wider than what stands below them.
    heads = [chr(ord("A") + place) for place in range(len(environments))]
    table([(method, *(row[each] for each in environments)) for method, row in marks.items()], head=("", *heads))
    line("\n" + fill(", ".join(f"{head} {each}" for head, each in zip(heads, environments, strict=True)), 80))
    composing = len(found) - len(refused)
    line(f"\n{composing} of {len(found)} pairs compose (+), of which {len(tried)} were tried.")
    line("`verl-hier recipes --pairs WORD` says why the others do not.")


def _offer(recipe: Recipe) -> None:
    """What a recipe does, and one line for each size that it offers."""
    line(f"{recipe.name}: {recipe.summary}")
    for size in recipe.sizes:
        line(f"  size={size}")
        line(f"    model={' | '.join(recipe.models(size))}")
        line(f"    server={' | '.join(recipe.servers(size))}")
    if len(recipe.policies) > 1:
        line(f"  policies={' | '.join(recipe.policies)}")


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
    line("`verl-hier recipes WORD` shows models and servers of the recipes with that word,")
    line("`verl-hier recipes --pairs` the pairs that can be named besides.\n")
    rows = [(method, ", ".join(sorted(names))) for method, names in sorted(environments.items())]
    table(rows, head=("method", "environments"), width=80)
    for recipe in found:
        if not recipe.method_and_environment:
            line(f"\n{recipe.name}\n{fill(recipe.summary, 80, initial_indent='  ', subsequent_indent='  ')}")
