"""Printing for people: tables that are not cut when the output is a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import typer

WIDE = 400


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> None:
    """Aligned columns; the last one wraps on a terminal and is whole in a pipe."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*head, box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        if not head and not shown.columns:
            for _ in row:
                shown.add_column()
        shown.add_row(*(_plain(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    typer.echo("\n".join(text.rstrip() for text in capture.get().splitlines()))


def heading(text: str) -> None:
    """A line that starts a part of the output."""
    typer.secho(f"\n{text}", bold=True)


def line(text: str = "") -> None:
    """One line on stdout."""
    typer.echo(text)


def _plain(cell: str) -> str:
    from rich.markup import escape

    return escape(cell)
