"""Places that a recipe names beside its data: the store of rollouts, and what makes sandboxes."""

from __future__ import annotations

import re

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.lazy import named_function
from verl_hier.recipe.checks.rule import rule
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.sandbox.scripts import LOCAL, installed

_URL = re.compile(r"([^/]*?)(?:::.*|:/+.*)", re.DOTALL)


@rule
def check_store(recipe: ComposedRecipe) -> None:
    """Refuse a store at an address of a kind that no file system has."""
    path = recipe.hier.store.path
    if path is None:
        return
    if not path.strip() or "\x00" in path:
        raise RecipeError(f"hier.store.path: {path!r} names no folder; name one, or null to store nothing.")
    if address := _URL.fullmatch(path):
        from fsspec.registry import known_implementations, registry

        known = {*known_implementations, *registry}
        if address[1] not in known:
            raise RecipeError(
                f"hier.store.path: there is no file system {address[1]!r}{did_you_mean(address[1], known)} for {path}; "
                "name a folder, or an address such as s3://bucket/folder."
            )


@rule
def check_sandbox(recipe: ComposedRecipe) -> None:
    """Refuse a sandbox of a function that is not there."""
    provider = recipe.hier.sandbox.provider
    if provider != LOCAL and provider not in installed():
        named_function(provider, "hier.sandbox.provider")
