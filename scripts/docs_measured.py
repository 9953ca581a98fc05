"""Tables of what the benchmarks have measured, from the files that they wrote below docs/."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from docs_markdown import table

from verl_hier.ops.bench import tables
from verl_hier.ops.bench.cells import Cells
from verl_hier.ops.bench.panel import Panel
from verl_hier.recipe import catalogue

DOCS = Path(__file__).resolve().parents[1] / "docs"


def cold_starts() -> Iterator[str]:
    """What `scripts/bench/cold_starts.py` has measured, and the recipes that it has not."""
    file = DOCS / "cold_starts.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    rows = [
        (
            f"`{name}`",
            "{mean:.0%} ({low:.0%} to {high:.0%})".format(**one["success"]),
            str(one["episodes"]),
            str(one["contexts"]),
            str(one["steps"]),
            f"{one['core_seconds']:.0f}" if one["core_seconds"] else "",
        )
        for name, one in found.items()
    ]
    if rows:
        yield from table(
            ("recipe", "success", "held-out episodes", "contexts shown", "steps", "seconds of a core"), *rows
        )
        conditions = dict.fromkeys(
            f"{one['machine']}, verl {one['verl']}, torch {one['torch']}" for one in found.values()
        )
        dates = sorted(one["date"] for one in found.values())
        yield from ("", f"Measured on {'; '.join(conditions)}, from {dates[0]} to {dates[-1]}.")
    shipped = [recipe.name for recipe in catalogue.recipes() if "cpu" in recipe.sizes]
    missing = [name for name in shipped if name not in found]
    if missing:
        yield from ("", f"Not measured yet: {', '.join(f'`{name}`' for name in missing)}.")


def updates() -> Iterator[str]:
    """What `scripts/bench/updates.py` has measured."""
    file = DOCS / "learning" / "updates.json"
    if not file.is_file():
        yield "Not measured yet."
        return
    measured = json.loads(file.read_text(encoding="utf-8"))
    yield from _bench("updates").table(measured)
    yield from ("", "![success and clipped tokens over generated tokens](updates.png)", "")
    quick = ", with `--quick`" if measured["quick"] else ""
    yield f"Measured on {measured['machine']}, verl {measured['verl']}, torch {measured['torch']}{quick}."


def tree_engine() -> Iterator[str]:
    """What `scripts/bench/tree_engine.py` has measured."""
    measured = json.loads((DOCS / "tree_engine.json").read_text(encoding="utf-8"))
    yield from _bench("tree_engine_table").table(measured)
    yield from ("", "![time of the tree engine over the share of pairs of attention](tree_engine.png)")


def tree_steps() -> Iterator[str]:
    """What `scripts/bench/tree_steps.py` has measured."""
    file = DOCS / "tree_steps.json"
    if not file.is_file():
        yield "Not measured yet."
        return
    measured = json.loads(file.read_text(encoding="utf-8"))
    yield from _bench("tree_engine_table").steps_table(measured)


def viewer() -> Iterator[str]:
    """What `scripts/bench/viewer.py` has measured."""
    yield from _bench("viewer").table(json.loads((DOCS / "viewer.json").read_text(encoding="utf-8")))


def worlds() -> Iterator[str]:
    """What `scripts/bench/all_worlds.py` has measured."""
    measured = json.loads((DOCS / "worlds.json").read_text(encoding="utf-8"))
    yield from table(*_bench("all_worlds").table_of(measured))
    yield from ("", f"Measured on {measured['machine']}.")


def durations(part: str) -> Iterator[str]:
    """A part of what `scripts/bench/durations.py` has measured."""
    held = json.loads((DOCS / "durations.json").read_text(encoding="utf-8"))
    yield from table(*_bench("durations").rows(part, held))
    yield from ("", f"Measured with `python scripts/bench/durations.py`, {held['date']}.")


def delegation(part: str) -> Iterator[str]:
    """A part of what `scripts/bench/delegation.py` has measured."""
    held = json.loads((DOCS / "delegation.json").read_text(encoding="utf-8"))
    yield from table(*_bench("delegation").rows(part, held))
    yield ""
    yield (
        f"Gradients of {held['batches']} batches, and what {held['seeds']} seeds have learned in "
        f"{held['setting']['turns']} turns; `python scripts/bench/delegation.py`, {held['date']}."
    )


def real_model() -> Iterator[str]:
    """What `tests/e2e/test_real_model.py` has measured."""
    file = DOCS / "real_model.json"
    if not file.is_file():
        yield "Not measured yet."
        return
    found = json.loads(file.read_text(encoding="utf-8"))
    yield from table(
        ("what", "figure"),
        (
            "from `pip install gguf` to the end of the first step of `grpo_math`",
            f"{found['first_step_s']} s, for which one core alone would work {found['first_step_core_s']} s",
        ),
        ("the second step: 32 answers, two updates", f"{found['step_s']} s"),
        ("the whole page, with runs of two steps", f"{found['all_s']} s"),
        ("most memory of all processes, what they share counted once", f"{found['memory_gb']} GB"),
        ("most space on the disk: wheel, model and one run", f"{found['disk_of_one_run_gb']} GB"),
        ("the same with both runs", f"{found['disk_gb']} GB"),
    )
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    yield from (
        "",
        f"Measured by `scripts/test --long real_model` on {found['date']}: {found['cores']} cores on which "
        f"{found['load']} processes wanted to run on average in the last quarter of an hour, {versions}.",
    )


def panel(name: str, made: str) -> Iterator[str]:
    """A table of what `verl-hier bench PANEL` has measured in any version, by the panel and the name of the table."""
    found, cells = Panel.find(name), Cells(DOCS / name / "cells.jsonl").all
    groups = tables.grouped(found, cells)
    lines = {"table": tables.results, "other_costs": tables.other_costs}
    if not groups:
        yield "Not measured yet."
    else:
        yield from lines[made](found, groups) if made in lines else tables.on_the_way(found, cells)


def self_imitation(part: str) -> Iterator[str]:
    """What `scripts/bench/self_imitation.py` has measured: `learned` or `aged`."""
    file = DOCS / "self_imitation.json"
    if not file.is_file():
        yield "Not measured yet."
        return
    measured, bench = json.loads(file.read_text(encoding="utf-8")), _bench("self_imitation")
    if part == "learned":
        worlds = (f"`{world}`" for world in bench.LEARNED)
        yield from table(("", *worlds, "optimiser steps"), *bench.learned_table(measured))
        return
    names = (f"{which} rows, {said}" for which in bench.CHOSEN for said in ("clipped", "with the ratio", "without"))
    yield from table(("world", "age", "distance", "outside", *names), *bench.aged_table(measured))


def _bench(name: str) -> ModuleType:
    """A module of the benchmarks."""
    sys.path.insert(0, str(Path(__file__).parent / "bench"))
    return importlib.import_module(name)


def search() -> Iterator[str]:
    """What `scripts/bench/search.py` has measured: a vote over the leaves of a tree, and over independent episodes."""
    found = json.loads((DOCS / "search.json").read_text(encoding="utf-8"))
    budgets = ("tokens", "calls", "calls and repeated calls")
    rows = []
    for row in found["rows"]:
        cells = [f"`{row['world']}`", str(row["n"]), f"{row['single']:.1%}", f"{row['tree']['success']:.1%}"]
        for each in (row[budget] for budget in budgets):
            better = f"{100 * each['difference']:+.1f} ± {100 * each['half']:.1f}"
            cells.append(f"{each['success']:.1%}; {better}")
        rows.append(tuple(cells))
    yield from table(
        ("tasks of", "leaves", "one episode", "the tree", *(f"as many {budget}" for budget in budgets)), *rows
    )
    yield ""
    yield (
        "Success, and how much better the tree is in points, with the 95 % interval over "
        f"{found['tasks']} held-out tasks, each the mean of {found['seeds']} seeds; cold-started models of 0.2 million "
        f"parameters, `{found['sampler']}`, {found['date']}, `python scripts/bench/search.py --out docs/search.json`."
    )


BLOCKS = {
    "search": search,
    "cold_starts": cold_starts,
    "delegation": delegation,
    "durations": durations,
    "panel": panel,
    "real_model": real_model,
    "self_imitation": self_imitation,
    "updates": updates,
    "viewer": viewer,
    "worlds": worlds,
    "tree_engine": tree_engine,
    "tree_steps": tree_steps,
}
