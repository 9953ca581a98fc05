"""Graphs of states of many rollouts, a task a line."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from verl_hier.errors import GraphError
from verl_hier.graph import read_graphs
from verl_hier.graph.states import state_graphs
from verl_hier.ops.exchange.files import write_lines


def export_states(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> tuple[int, Counter[str]]:
    """Write the graph of states of each task, and return how many there are and the turns that no state has, by role.

    Args:
        source: graph file, or a folder of them.
        out: a `.jsonl` file.

    Raises:
        GraphError: for another suffix, a source that cannot be read, a disk that refuses, or a world that names no
            state.
    """
    found = [*state_graphs(read_graphs(source))]
    if not any(graph.states for graph in found):
        raise GraphError(f"no turn in {source} has the name of a state: its world gives none (`anchor`).")
    unnamed: Counter[str] = Counter()
    for graph in found:
        unnamed += graph.unnamed
    return write_lines(Path(out), (".jsonl",), (graph.fields() for graph in found)), unnamed
