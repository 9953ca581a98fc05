"""`compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.options import new_file
from verl_hier.cli.output import LIST, line, table


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of training runs.")],
    metric: Annotated[
        str | None, typer.Option(help="Compare this metric; omitted: success on held-out tasks, or in training.")
    ] = None,
    html: Annotated[Path | None, new_file("Write a page with curves and tables.", ".html")] = None,
    png: Annotated[Path | None, new_file("Write a picture of the curves.", ".png")] = None,
) -> None:
    """Compare training runs at equal tokens, episodes and time."""
    from verl_hier.ops.compare import by_tasks
    from verl_hier.ops.compare import compare as compared
    from verl_hier.ops.compare_page import HEAD, page, picture, rows
    from verl_hier.ops.runs import Run

    groups, why = by_tasks([Run.open(run) for run in runs], metric)
    comparisons = [compared(group, metric) for group in groups]
    if why:
        line(why)
        line()
    for number, found in enumerate(comparisons):
        if number:
            line()
        line(found.measure)
        table(rows(found), head=HEAD, width=LIST)
        differences = found.differences()
        if differences:
            line()
            line("in what the recipes differ")
            table(((key, *words) for key, words in differences), ("key", *(arm.name for arm in found.arms)), LIST)
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        picture(comparisons, png, "png")
        line(f"{png}: curves")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(*comparisons, why=why), encoding="utf-8")
        line(f"{html}: curves and tables")
