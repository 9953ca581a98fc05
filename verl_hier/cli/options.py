"""Kinds of options and arguments that several commands share: each refuses nonsense before the command starts.

They are values for `typing.Annotated`. A refusal is typer's usage error: it names the option and exits with code 2.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer


def whole(text: str, *flags: str, least: int = 1) -> Any:
    """A whole number of at least `least`."""
    return typer.Option(*flags, min=least, help=text)


def share(text: str) -> Any:
    """A number within [0, 1]."""
    return typer.Option(min=0, max=1, callback=_finite, help=text)


def weight(text: str) -> Any:
    """A finite number that is not negative."""
    return typer.Option(min=0, callback=_finite, help=text)


def finite(text: str) -> Any:
    """A finite number."""
    return typer.Option(callback=_finite, help=text)


def positive(text: str) -> Any:
    """A finite number above zero."""
    return typer.Option(callback=_positive, help=text)


def new_file(text: str, *suffixes: str) -> Any:
    """A file to write, of one of the suffixes; its folder is made when it is missing."""

    def checked(path: Path | None) -> Path | None:
        if path is not None and suffixes and not path.name.endswith(suffixes):
            raise typer.BadParameter(f"{path} has no known suffix: use {' or '.join(suffixes)}.")
        return _creatable(path)

    return typer.Option(dir_okay=False, writable=True, callback=checked, help=text)


def new_folder(text: str) -> Any:
    """A folder to write to, which is made when it is missing."""
    return typer.Option(file_okay=False, writable=True, callback=_creatable, help=text)


def _finite(number: float | None) -> float | None:
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number.")
    return number


def _positive(number: float | None) -> float | None:
    if number is not None and number <= 0:
        raise typer.BadParameter(f"{number} is not above zero.")
    return _finite(number)


def _creatable(path: Path | None) -> Path | None:
    """Refuse a path that cannot be made, so that nobody waits for a result that cannot be written."""
    if path is None:
        return None
    from verl_hier.graph.places import RemotePath, place

    found = place(path)
    if isinstance(found, RemotePath):
        raise typer.BadParameter(f"{found} is no local path: write to one, and copy the result from there.")
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if there != path and not there.is_dir():
        raise typer.BadParameter(f"{path} cannot be made: {there} is a file.")
    if not os.access(there, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be made: {there} is not writable.")
    return path


def stored(path: Path | None) -> Path | None:
    """Refuse rollouts that are not there, on whichever file system; a URL becomes its path."""
    if path is None:
        return None
    from verl_hier.graph.places import RemotePath, place

    found = place(path)
    if not found.exists():
        raise typer.BadParameter(f"Path '{found}' does not exist.")
    if not isinstance(found, RemotePath) and not os.access(found, os.R_OK):
        raise typer.BadParameter(f"Path '{found}' is not readable.")
    return found


Graphs = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        callback=stored,
        help="Folder of a run, its store (hier.store), a step of it, or graph files; or the URL of a store.",
    ),
]
OptionalGraphs = Annotated[
    Path | None,
    typer.Argument(
        metavar="[INPUT]",
        callback=stored,
        help="Folder of a run, its store (hier.store), a step of it, or graph files; or the URL of a store.",
    ),
]
Seed = Annotated[int, whole("Seed of everything that is drawn.", least=0)]
