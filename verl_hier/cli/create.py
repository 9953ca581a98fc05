"""`new`: start a plugin package."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.options import new_folder
from verl_hier.cli.output import line


class NewKind(str, Enum):
    """Kinds of which there is an example."""

    environment = "environment"
    worker = "worker"
    sampler = "sampler"
    estimator = "estimator"
    schedule = "schedule"


def new(
    kind: Annotated[NewKind, typer.Argument(help="What the plugin brings.")],
    name: Annotated[str, typer.Argument(help="Name of the part, and of the package.")],
    into: Annotated[Path, new_folder("Folder in which the package's folder is made.")] = Path("."),
) -> None:
    """Copy an example plugin as a package of your own."""
    from verl_hier.ops.new import create

    files = create(kind.value, name, into)
    for file in files:
        line(str(file))
    line(f"next: pip install -e '{into / files[0].parent}[dev]' && pytest {into / files[0].parent}")
