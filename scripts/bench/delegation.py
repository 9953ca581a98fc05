#!/usr/bin/env python3
"""What each practice of credit for delegation costs, in worlds whose exact gradient is known.

    python scripts/bench/delegation.py

Kept in docs/delegation.json, world by world, from which the tables of docs/lab.md and docs/methods/sub_agents.md are
made. Nothing depends on the machine, so that a second time gives the same figures; one core takes about half an hour.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_hier.host.manager import PluginHost
from verl_hier.lab.delegation import DELEGATED, HEAD, compared, exact, shown
from verl_hier.lab.learn import Setting
from verl_hier.lab.study import write_lines

USED = (
    *(("by_role", "episode"), ("by_role", "token"), ("own", "episode"), ("inherit", "row"), ("broadcast", "row")),
    *(("split", "row"), ("longest", "row"), ("exact_critic", "token")),
)
"""Practices with the weights that those have who use them, and what there is to compare them with."""
WORLDS = ("useful", "needed", "shortened")


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("docs/delegation.json"))
    options = parser.parse_args()
    host, setting = PluginHost.load({"builtin": True}), Setting()
    rows = []
    for name, world in DELEGATED.items():
        for cost in compared(world, host, options.batches, options.seeds, setting):
            rows.append({"world": name, **cost.to_dict()})
            print(" | ".join((name, *shown(rows[-1]))), flush=True)
    write_lines(
        options.out,
        {
            "date": time.strftime("%Y-%m-%d"),
            "batches": options.batches,
            "seeds": options.seeds,
            "setting": asdict(setting),
            "rows": rows,
        },
    )


def rows(part: str, held: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The head and the rows of a table: everything of a world, or, as `practices`, some of several worlds."""
    if part != "practices":
        yield HEAD
        yield exact(DELEGATED[part])
        yield from (shown(row) for row in held["rows"] if row["world"] == part)
        return
    found = {(row["world"], row["practice"], row["weight_by"]): shown(row) for row in held["rows"]}
    columns = [HEAD.index(name) for name in ("bias", "solved", "spawned")]
    yield "practice", "weights", *(f"`{world}`: {HEAD[column]}" for world in WORLDS for column in columns)
    for practice, weights in USED:
        cells = (found[world, practice, weights] for world in WORLDS)
        yield practice, weights, *(row[column] for row in cells for column in columns)


if __name__ == "__main__":
    main()
