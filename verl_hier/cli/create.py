"""`new`: start a plugin package or a recipe."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.output import line


class NewKind(str, Enum):
    """What there is an example of."""

    environment = "environment"
    worker = "worker"
    sampler = "sampler"
    estimator = "estimator"
    schedule = "schedule"
    method = "method"
    recipe = "recipe"


def new(
    kind: Annotated[
        NewKind, typer.Argument(help="One part, a method of several parts with its recipe, or a recipe alone.")
    ],
    name: Annotated[str, typer.Argument(help="Name of the part or recipe, and of the package.")],
    into: Annotated[Path, typer.Option(help="Folder in which the package's folder or the recipe is made.")] = Path("."),
    like: Annotated[str, typer.Option(help="For a recipe: the one to copy.")] = "grpo_alfworld",
) -> None:
    """Write a plugin package with a test, or a recipe."""
    from verl_hier.ops.new import create_package, create_recipe

    if kind is NewKind.recipe:
        files = create_recipe(name, into, like)
        command = f"verl-hier check {shlex.quote(str(into / files[0]))}"
    else:
        files = create_package(kind.value, name, into)
        package = str(into / files[0].parent)
        # Without a slash pip takes a word for the name of a project in its index.
        place = package if "/" in package else f"./{package}"
        command = f"pip install -e {shlex.quote(f'{place}[dev]')} && pytest {shlex.quote(package)}"
    for file in files:
        line(str(file))
    line(f"next: {command}")
