"""Commands of other packages: entry points of the group `verl_hier.commands`, imported when they are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import typer

from verl_hier.errors import PluginError, raised

GROUP = "verl_hier.commands"
PANEL = "Of other packages"


def add_commands(app: typer.Typer, arguments: Sequence[str], ours: Collection[str]) -> None:
    """Add the commands of other packages, unless the words call one of ours, which then starts as fast as without.

    Only the command that is called is imported; the others are listed with the package that they are from.

    Raises:
        PluginError: when a command has the name of another one, or fails to load.
    """
    called = next((word for word in arguments if not word.startswith("-")), "")
    if called in ours:
        return
    from verl_hier.installed import points_of

    known: dict[str, EntryPoint] = {}
    for point in points_of(GROUP):
        other = known.setdefault(point.name, point)
        if point.name in ours or (other.value, _origin(other)) != (point.value, _origin(point)):
            holder = "verl-hier" if point.name in ours else _origin(other)
            raise PluginError(
                f"the command {point.name!r} of {_origin(point)} ({point.value}) is also one of {holder}; rename its "
                f"entry point in the group {GROUP}."
            )
    for name, point in known.items():
        function = _loaded(point) if name == called else _unread
        app.command(name, help=None if name == called else f"From {_origin(point)}.", rich_help_panel=PANEL)(function)


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = point.load()
    except Exception as error:
        raise PluginError(
            f"the command {point.name!r} of {_origin(point)} ({point.value}) failed to load: {raised(error)}; mend or "
            "uninstall the package."
        ) from error
    return function


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _unread() -> None:
    """Stands for a command that is only listed."""
