"""What the rows of stored rollouts share: how much of them the tree engine would have forwarded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.graph.rows import SharedPrefix, graph_rows
from verl_hier.graph.storage import graph_parts
from verl_hier.ops.stored import Stored
from verl_hier.training.schedule import Phase
from verl_hier.training.sharing import Row, Sharing


def trained_rows(graph: RolloutGraph, rule: SharedPrefix = "once") -> list[tuple[Row, int]]:
    """The token ids of each row of a rollout that its phase trains, and how many of them are its prompt.

    Args:
        graph: a graph whose `check` passes.
        rule: `hier.guards.shared_prefix` of its recipe.
    """
    rows = graph_rows(graph, Phase.from_dict(graph.phase).trains, rule)
    return [(np.asarray(row.prompt + row.response, np.int64), len(row.prompt)) for row in rows]


def sharing_of(graphs: Iterable[RolloutGraph], rule: SharedPrefix = "once") -> Sharing:
    """What the trained rows of rollouts share, each task by itself, as `hier/sharing/*` of a run counts it."""
    return Sharing.total(Sharing.of([row for row, _ in trained_rows(graph, rule)]) for graph in graphs)


def last_step(stored: Stored) -> tuple[list[RolloutGraph], SharedPrefix]:
    """The rollouts of the last stored step, and `hier.guards.shared_prefix` of their recipe.

    Raises:
        GraphError: when there is none, or the last part of the store cannot be read.
        HierError: when `run.json` is damaged.
    """
    graphs = list(read_graphs(graph_parts(stored.graphs)[-1]))
    last = max((graph.step for graph in graphs), default=0)
    guards = stored.recipe().get("guards")
    rule: Any = guards.get("shared_prefix", "once") if isinstance(guards, Mapping) else "once"
    return [graph for graph in graphs if graph.step == last], rule


def said_of_last_step(stored: Stored) -> str | None:
    """A sentence on the rows of the last stored step; None where it trained none.

    The errors are those of `last_step`.
    """
    graphs, rule = last_step(stored)
    found = sharing_of(graphs, rule).metrics()
    if not found:
        return None
    return (
        f"The rows of step {graphs[0].step} have {found['hier/sharing/tokens']:.0f} tokens. Rows of one task share "
        f"beginnings, which the tree engine (`engine=tree`) computes once: it would compute "
        f"{found['hier/sharing/unique_share']:.1%} of the tokens and {found['hier/sharing/visible_share']:.1%} of the "
        "attention between them."
    )
