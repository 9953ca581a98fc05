"""The table of the choices of `hier/policies`: which recipe offers which, and who is played by which model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from docs_markdown import table

from verl_hier.recipe import pairs
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.checks.roles import worker_levels
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import played
from verl_hier.rollout.policy import DEFAULT_POLICY

APART = pairs.FORMS[1:]
"""The choices besides that of one model for all roles."""
HOW = {"full": "", "adapter": " (an adapter)", "none": " (never learns)"}


def links(method: Mapping[str, Any]) -> str:
    """The choices that the file of a method has a block for, as words of the command line; "" for none."""
    return ", ".join(f"`policies={form}`" for form in APART if form in method)


def forms() -> Iterator[str]:
    """Each recipe that was tried with each choice that it offers, and who is played by which model."""
    offered = [(name, form) for name in pairs.tried() for form in find(name).policies if form in APART]
    rows = ((f"`{name}`", f"`policies={form}`", _players(name, form)) for name, form in offered)
    yield from table(("recipe", "choice", "who is played by which policy"), *rows)


def _players(name: str, form: str) -> str:
    recipe = ComposedRecipe.named(name, [f"policies={form}"])
    declared, roles = recipe.hier.policies, [*worker_levels(recipe.parts.worker)]
    owners, of = played(declared, roles, 1, None), dict[str, list[str]]()
    for role in roles:
        of.setdefault(owners.get(role, DEFAULT_POLICY), []).append(role)
    said = [
        f"`{policy}`{HOW[declared[policy].train] if policy in declared else ''}: {', '.join(held)}"
        for policy, held in of.items()
    ]
    every = recipe.hier.exchange_policies
    return "; ".join([*said, *([f"exchanged every {every} steps"] if every else [])])


BLOCKS: dict[str, Callable[..., Iterator[str]]] = {"policies_of_recipes": forms}
