#!/usr/bin/env python3
"""What asynchronous trainers take when durations differ, and how old the rows of trees are.

    python scripts/bench/durations.py

`lab` plays verl's rules and `hier.launch_order` in a world in which slow tasks pay; `trees` plays the tasks of a tree
sampler and of independent episodes on a clock, in the queue of `hier_separate_async`. Both are kept in
docs/durations.json. Nothing depends on the machine, so that a second time gives the same tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_hier.lab import patience, staleness

PARTS = {"lab": (patience.HEAD, 150), "trees": (staleness.HEAD, 60)}
"""The head of each table, and the steps of its runs."""


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/durations.json"))
    options = parser.parse_args()
    held: dict[str, Any] = {"date": time.strftime("%Y-%m-%d")}
    for part, (_, steps) in PARTS.items():
        found = patience.compared(patience.Patience(), steps) if part == "lab" else staleness.compared(steps)
        held[part] = [list(row) for row in found]
        print("\n".join(" | ".join(row) for row in rows(part, held)), flush=True)
    options.out.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def rows(part: str, held: dict[str, Any]) -> list[Sequence[str]]:
    """The head and the rows of a table."""
    return [PARTS[part][0], *held[part]]


if __name__ == "__main__":
    main()
