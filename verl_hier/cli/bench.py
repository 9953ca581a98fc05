"""`bench`: methods on the tasks of a panel, for equal tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_hier.cli.check import Overrides
from verl_hier.cli.options import new_folder, positive, whole
from verl_hier.cli.output import line


def bench(
    panel: Annotated[str, typer.Argument(help="A shipped panel's name, or the path of a YAML file.")],
    overrides: Overrides = None,
    tasks: Annotated[str, typer.Option(help="Tasks or groups of the panel, with commas; omitted: all.")] = "",
    methods: Annotated[str, typer.Option(help="Methods, with commas; omitted: all of each task.")] = "",
    seeds: Annotated[int, whole("Seeds of each method, from 0.")] = 3,
    hours: Annotated[float, positive("Begin no run after so many hours; call it again to go on.")] = 1000.0,
    jobs: Annotated[int, whole("Runs at a time.")] = 1,
    out: Annotated[
        Path | None, new_folder("Folder of the cells, their page and the logs; omitted: runs/bench/PANEL.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Measure nothing; only write the page again.")] = False,
) -> None:
    """Compare methods on the tasks of a panel, for equal tokens.

    What was measured before, as it would be measured now, is not measured again.
    """
    from verl_hier.errors import HierError, did_you_mean
    from verl_hier.ops.bench.cells import Cells
    from verl_hier.ops.bench.page import CELLS, write_page
    from verl_hier.ops.bench.panel import Panel
    from verl_hier.ops.bench.running import Bench, measure, require_sound

    found = Panel.find(panel)
    chosen, named = found.chosen(_words("tasks", tasks)), _words("methods", methods)
    known = {method for name in chosen for method in found.tasks[name].methods}
    for method in named:
        if method not in known:
            near = did_you_mean(method, known)
            raise HierError(f"--methods: none of the tasks has {method!r}{near}; they have {', '.join(sorted(known))}.")
    wanted = named or known
    places = tuple((name, each) for name in chosen for each in found.tasks[name].methods if each in wanted)
    folder = out or Path("runs/bench") / found.name
    plan = Bench(found, Cells(folder / CELLS), folder / "work", places, seeds, jobs, tuple(overrides or ()))
    prints = plan.prints()
    if not report:
        require_sound(plan)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not report:
            measure(plan, prints, hours, line)
    finally:
        for sentence in write_page(plan, prints, folder):
            line(sentence)


def _words(option: str, text: str) -> list[str]:
    """The words of an option; none where it was not given.

    Raises:
        HierError: where it was given without a word.
    """
    from verl_hier.errors import HierError

    words = [word.strip() for word in text.split(",") if word.strip()]
    if text and not words:
        raise HierError(f"--{option}: {text!r} names nothing; leave the option out for all of them.")
    return words
