"""Graph files, of every schema version, as a store in columns."""

from __future__ import annotations

import re
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from verl_hier.errors import GraphError
from verl_hier.graph import RolloutGraph, read_graphs, write_step
from verl_hier.graph.storage import graph_parts

_NAMED = re.compile(r"step_(\d+)(\.parquet|\.jsonl|\.jsonl\.gz)?")


def convert(source: Path, store: Path) -> tuple[int, int]:
    """Write rollouts as a store. Those below `validation` become its validation.

    A file that is named after a step, as earlier versions of verl-hier stored them, becomes that step. The graphs of
    all other files are sorted by the step that started them.

    Args:
        source: graph file, or a folder of them.
        store: folder to write; a step that it has already is replaced.

    Returns:
        how many steps and tasks were written.

    Raises:
        GraphError: when a file cannot be read, a step comes up twice, or the disk refuses.
    """
    if store.resolve() == source.resolve():
        raise GraphError(f"{store} is where the rollouts come from; give another folder for the store.")
    steps, tasks = _convert(source, store)
    if (source / "validation").is_dir():
        more = _convert(source / "validation", store / "validation")
        steps, tasks = steps + more[0], tasks + more[1]
    return steps, tasks


def _convert(source: Path, store: Path) -> tuple[int, int]:
    counts: dict[int, int] = {}
    others: list[RolloutGraph] = []
    for part in graph_parts(source):
        named = _NAMED.fullmatch(part.name)
        if named is None:
            others += read_graphs(part)
            continue
        number = int(named[1])
        if number in counts:
            raise GraphError(f"{part} is a second file of step {number}; remove one of them.")
        counts[number] = write_step(store, number, read_graphs(part))
    for number, graphs in groupby(sorted(others, key=attrgetter("step")), key=attrgetter("step")):
        if number in counts:
            raise GraphError(f"{source} has a file of step {number} and other graphs of it; move them apart.")
        counts[number] = write_step(store, number, graphs)
    return len(counts), sum(counts.values())
