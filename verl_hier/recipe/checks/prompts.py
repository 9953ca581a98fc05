"""Prompts that cannot be filled, and a world that is none for the worker."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.constraints import STANDARD_FIELDS, Template, field_names
from verl_hier.recipe.checks.rule import rule
from verl_hier.recipe.checks.world import first_answer, info_names
from verl_hier.recipe.composed import ComposedRecipe

NEARLY = 0.8
"""How like a known field one that is not known must be to be a misspelling of it, from 0 to 1."""


@rule
def check_prompts(recipe: ComposedRecipe) -> None:
    """Refuse a prompt with a field that neither the task, the environment nor the worker fills."""
    require_fields(recipe)


@rule
def check_world(recipe: ComposedRecipe) -> None:
    """Refuse an environment that the worker cannot play in, such as a game with another number of seats."""
    worker = recipe.parts.worker
    if worker.spec.fits is not None:
        answer = first_answer(recipe)
        if answer is not None:
            worker.spec.fits(worker.options, answer)


@rule
def check_misspelt_fields(recipe: ComposedRecipe) -> None:
    """Refuse a prompt with a field that is nearly one of the usual ones, also where its worker may fill others."""
    for line, text, template in _texts(recipe.parts.worker.options, "hier.worker"):
        known = {*STANDARD_FIELDS, *(template.fields if template else ())}
        info = {*(recipe.parts.environment.spec.info or ())}
        try:
            wanted = field_names(text) - known - info
        except ValueError:  # a template is read before, and any other text may have braces
            continue
        for field in sorted(wanted):
            near = difflib.get_close_matches(field, known, 1, NEARLY)
            if near:
                raise RecipeError(
                    f"{line}: nothing fills {{{field}}} (did you mean {near[0]!r}?); a field of the worker's own needs "
                    "another name, and {{ and }} are braces that are meant."
                )


def require_fields(recipe: ComposedRecipe, info: set[str] | None = None) -> None:
    """Refuse a template of the worker with a field that nothing fills.

    Args:
        recipe: the recipe.
        info: names in the `info` of a reset; None asks the environment when a template has other fields than the usual.

    Raises:
        RecipeError: naming the line of the template and the fields that there are.
    """
    for line, text, template in templates(recipe.parts.worker.options, "hier.worker"):
        wanted = field_names(text) - {*STANDARD_FIELDS, *template.fields}
        if not wanted or template.later:
            continue
        info = info_names(recipe) if info is None else info
        unknown = sorted(wanted - info) if info is not None else []
        if unknown:
            known = sorted({*STANDARD_FIELDS, *template.fields, *(info or ())})
            raise RecipeError(
                f"{line}: nothing fills {{{unknown[0]}}}{did_you_mean(unknown[0], known)}; fields of this environment "
                f"and worker: {', '.join(known)}; write {{{{ and }}}} for braces that are meant."
            )


def templates(options: Any, where: str) -> Iterator[tuple[str, str, Template]]:
    """(recipe line, text, what it is declared to be) of every text that is declared as a template among a part's
    options; see `_texts`."""
    return ((line, text, template) for line, text, template in _texts(options, where) if template is not None)


def _texts(options: Any, where: str) -> Iterator[tuple[str, str, Template | None]]:
    """(recipe line, text, what it is declared to be) of every template among a part's options, and of every other text
    that is called a prompt.

    Args:
        options: a dataclass; dataclasses in it and in its mappings are looked through too.
        where: the recipe line of the part.
    """
    hints = typing.get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        given, line = getattr(options, field.name), f"{where}.{field.name}"
        template = _template(hints[field.name])
        if isinstance(given, str) and (template is not None or field.name.endswith("prompt")):
            yield line, given, template
        elif dataclasses.is_dataclass(given):
            yield from _texts(given, line)
        elif isinstance(given, Mapping):
            for name, inner in given.items():
                if dataclasses.is_dataclass(inner):
                    yield from _texts(inner, f"{line}.{name}")


def _template(hint: Any) -> Template | None:
    """The template in an annotation, also inside of `… | None`."""
    if typing.get_origin(hint) is Annotated:
        return next((extra for extra in typing.get_args(hint)[1:] if isinstance(extra, Template)), None)
    return next(filter(None, map(_template, typing.get_args(hint))), None)
