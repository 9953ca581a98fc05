"""The page of a panel: tables, curves and what was not run, from the cells that were measured as they would be now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from verl_hier.ops.bench.running import Bench
from verl_hier.ops.bench.tables import grouped, missing, other_costs, plot, results

CELLS = "cells.jsonl"
PAGE = "results.md"
"""Not README.md: a folder of results may have one of somebody's own, as docs/learning has."""


def write_page(bench: Bench, prints: Mapping[tuple[str, str], str], folder: Path) -> Iterator[str]:
    """Write `results.md` and `curves.png`, and say where they are and what they lack."""
    panel = bench.panel
    sound = [c for c in bench.cells.all if c["fingerprint"] == prints.get((c["task"], c["method"]))]
    groups = grouped(panel, sound)
    lacking = [*missing(bench.places, groups, bench.seeds)]
    old = sum(1 for c in bench.cells.all if (c["task"], c["method"]) in prints) - len(sound)
    lines = [f"# {panel.name}", "", panel.summary, ""]
    if groups:
        plot(panel, groups, folder / "curves.png")
        lines += [
            *results(panel, groups),
            "",
            *other_costs(panel, groups),
            "",
            "![success over tokens](curves.png)",
            "",
        ]
    if lacking:
        lines += ["Not run:", "", *(f"- {each}" for each in lacking), ""]
    if old:
        lines += [f"{old} cells of other versions, recipes or budgets are in `{CELLS}` and do not count here.", ""]
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")
    yield f"{len(sound)} cells count, {len(lacking)} methods lack seeds: {folder / PAGE}"
