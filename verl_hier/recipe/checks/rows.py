"""Rows of verl's data sets: missing columns, pictures, tools that nobody calls, answers that nobody scores."""

from __future__ import annotations

from pathlib import Path

from verl_hier.errors import FileError, RecipeError
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.checks.tasks import LINES
from verl_hier.recipe.checks.world import makes_tasks, splits
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.data_rows import FORMATS, data_rows, row_problem

LOOKED_AT = 256
"""Rows of each file that a check reads."""


def data_files(recipe: ComposedRecipe) -> list[tuple[str, str]]:
    """The recipe line and the name of each file that verl's own data set class reads; other classes read what they
    like."""
    if makes_tasks(recipe.config) or value(recipe.config, "data.custom_cls.path"):
        return []
    return [(f"data.{line}", file) for line in LINES for file in splits(recipe.config, line)]


@rule
def check_formats(recipe: ComposedRecipe) -> None:
    """Refuse data files that verl's data set does not read, such as the name of a split."""
    spec = recipe.parts.environment.spec
    for line, file in data_files(recipe):
        if Path(file).suffix in FORMATS:
            continue
        if spec.tasks is not None:
            raise RecipeError(
                f"{line}: environment {spec.name!r} makes tasks of its own, and data.custom_cls leaves them out for "
                f"verl's data set, which cannot read {file!r}; remove data.custom_cls."
            )
        raise RecipeError(f"{line}: {file} ends in none of {', '.join(FORMATS)}, which verl's data set reads.")


@rule
def check_rows(recipe: ComposedRecipe) -> None:
    """Refuse data files with rows that cannot be rolled out or scored; of each file the first rows are read."""
    spec = recipe.parts.environment.spec
    for line, file in data_files(recipe) if spec.tasks is None else ():
        path = Path(file).expanduser()
        if not path.is_file():
            continue
        try:
            for number, row in enumerate(data_rows(path, LOOKED_AT)):
                problem = row_problem(row, recipe.config, tools=bool(spec.in_worker))
                if problem:
                    raise RecipeError(f"{line}: row {number} of {file} {problem}")
        except FileError as error:
            raise RecipeError(f"{line}: {error}") from error
