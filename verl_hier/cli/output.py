"""Printing for people: tables that are not cut when the output is a file or a pipe.

What a model, a server or a file says may be in any of it, so characters that a terminal obeys are printed as codes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from verl_hier.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress

WIDE = 400
LIST = 80
"""Columns of a list in a pipe, and where the terminal does not say how wide it is."""


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), width: int = WIDE) -> None:
    """Aligned columns; the last ones wrap on a terminal, and in a pipe where they are wider than `width` columns."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*head, box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        if not head and not shown.columns:
            for _ in row:
                shown.add_column()
        shown.add_row(*(_plain(cell) for cell in row))
    if shown.columns:
        shown.columns[0].no_wrap = True
    console = Console(width=None if sys.stdout.isatty() else width, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    typer.echo("\n".join(text.rstrip() for text in capture.get().splitlines()))


def heading(text: str) -> None:
    """A line that starts a part of the output."""
    typer.secho(f"\n{visible(text)}", bold=True)


def line(text: str = "") -> None:
    """One line on stdout."""
    typer.echo(visible(text))


def _plain(cell: str) -> str:
    from rich.markup import escape

    return escape(visible(cell))


class StepBar:
    """Shows how far a training has come: a bar on a terminal, a line for each tenth of the steps elsewhere.

    A context manager that is called with the number of the step, of all steps, and the loss.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress: Progress | None = None
        self._tenths = 0

    def __enter__(self) -> StepBar:
        return self

    def __call__(self, step: int, steps: int, loss: float) -> None:
        """Show a step."""
        if not sys.stdout.isatty():
            if 10 * step // steps > self._tenths:
                self._tenths = 10 * step // steps
                line(f"    step {step} of {steps}, loss {loss:.3f}")
            return
        if self._progress is None:
            from rich.progress import Progress

            self._progress = Progress(*Progress.get_default_columns(), "{task.fields[loss]}")
            self._progress.start()
            self._progress.add_task(self._title, total=steps, loss="")
        self._progress.update(self._progress.task_ids[0], completed=step, loss=f"loss {loss:.3f}")

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
