"""Which turns lack a column that estimators require: such a step could not be credited."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from verl_hier.graph import RolloutGraph
from verl_hier.graph.columnar.light import light_of
from verl_hier.graph.columnar.table import table_of
from verl_hier.host.manager import PluginHost


def readers_of(columns: Collection[str]) -> dict[str, list[str]]:
    """The built-in estimators that require each of some columns; columns that none requires are left out."""
    specs: Mapping[str, Any] = PluginHost.load({"builtin": True}, "estimator").specs("estimator")
    found = {column: sorted(name for name, spec in specs.items() if column in spec.requires) for column in columns}
    return {column: names for column, names in found.items() if names}


def turns_without(graph: RolloutGraph, readers: dict[str, list[str]]) -> Iterator[str]:
    """One sentence for each column that complete episodes of a graph do not have on every turn.

    Args:
        graph: of a task, whose `check` passes.
        readers: the columns to look for, and the estimators that require each.
    """
    if not readers:
        return
    table, _ = table_of(light_of([graph]).columns)
    if not len(table):
        return
    for column, names in readers.items():
        home, _, name = column.rpartition(".")
        if home == "tokens":
            lacks = np.full(len(table), name not in table.tokens)
        else:
            values = table.turns.get(column)
            lacks = np.ones(len(table), bool) if values is None else np.isnan(np.asarray(values, np.float64))
        if lacks.any():
            role = table.names["role"][int(table["role"][lacks.argmax()])]
            yield (
                f"leaves a turn of the role {role!r} without the column {column!r}, which it declares in `provides`, "
                f"and which the estimators {', '.join(names)} require on every turn: note it on each, with 0 where "
                "there is nothing to say"
            )
