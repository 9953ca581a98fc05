"""The live table of `train` on a terminal: a row for each of the last steps, and what the run is about to reach."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from verl_hier.cli.output import line
from verl_hier.ops.progress import Progress, duration
from verl_hier.text import visible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

ROWS = 12
"""Steps that are shown; all of them are in the file of the metrics."""
COLUMNS = ("step", "trained", "success", "return", "tokens/s", "seconds", "validation", "cut", "alarms")


class RunTable:
    """Shows the steps of a run: one table that is drawn anew on a terminal, a line for each step elsewhere.

    A context manager; `said` takes what is told in words, `step` the metrics of a step.
    """

    def __init__(self, total: int | None) -> None:
        """
        Args:
            total: the step after which the run ends; None when that is not known.
        """
        self._progress = Progress(total)
        self._rows: deque[tuple[str, ...]] = deque(maxlen=ROWS)
        self._live: Live | None = None
        self._begun = time.monotonic()
        self._left = "the first step is under way"

    def __enter__(self) -> RunTable:
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(highlight=False), get_renderable=self._table, refresh_per_second=1)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def said(self, text: str) -> None:
        """Tell something in words, above the table."""
        if self._live is None:
            line(text)
        else:
            self._live.console.print(visible(text), markup=False)

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a step by its metrics."""
        if self._live is None:
            line(self._progress.line(record))
            return
        cells = self._progress.cells(record)
        self._rows.append(tuple(cells.get(name, "") for name in COLUMNS))
        self._left = f"{cells['left']} left" if "left" in cells else ""
        self._live.refresh()

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        since = f"{duration(time.monotonic() - self._begun)} since the start"
        shown = Table(*COLUMNS, box=None, pad_edge=False, caption=", ".join(filter(None, (since, self._left))))
        for row in self._rows:
            # Names of roles are a plugin's own words.
            shown.add_row(
                *(Text(cell, style="red" if name == "alarms" else "") for name, cell in zip(COLUMNS, row, strict=True))
            )
        return shown
