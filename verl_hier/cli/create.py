"""`new`: start a plugin package or a recipe."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.options import new_folder
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
        NewKind,
        typer.Argument(
            metavar="KIND",
            help="environment, worker, sampler, estimator or schedule for one part; method for several parts with "
            "their recipe; recipe for a recipe alone.",
        ),
    ],
    name: Annotated[str, typer.Argument(help="Name of the part or recipe, and of the package.")],
    into: Annotated[Path, new_folder("Folder in which the package's folder or the recipe is made.")] = Path("."),
    like: Annotated[str | None, typer.Option(help="For a recipe: the one to copy; omitted: grpo_alfworld.")] = None,
    environment: Annotated[
        str | None,
        typer.Option(help="For a method: the environment of its recipe, shipped or of a plugin; omitted: alfworld."),
    ] = None,
) -> None:
    """Write a plugin package with a test, or a recipe."""
    from verl_hier.errors import HierError
    from verl_hier.ops.new import create_package, create_recipe

    if environment is not None and kind is not NewKind.method:
        raise HierError(f"--environment is what the recipe of a method names; leave it out for a new {kind.value}.")
    if kind is NewKind.recipe:
        files = create_recipe(name, into, like or "grpo_alfworld")
        command = f"verl-hier check {shlex.quote(str(into / files[0]))}"
    elif like is not None:
        raise HierError(f"--like copies a recipe; a new {kind.value} has its own example, so leave the option out.")
    else:
        files = create_package(kind.value, name, into, environment or "alfworld")
        package = str(into / files[0].parent)
        # Without a slash pip takes a word for the name of a project in its index.
        place = package if "/" in package else f"./{package}"
        command = f"pip install -e {shlex.quote(f'{place}[dev]')} && pytest {shlex.quote(package)}"
    for file in files:
        line(str(file))
    line(f"next: {command}")
