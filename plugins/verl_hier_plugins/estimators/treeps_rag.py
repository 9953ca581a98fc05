"""TreePS-RAG, tree-based process supervision (arXiv 2601.06922), docs/methods/treeps_rag.md.

The combination of the two differences follows TreeRL's form and is to be confirmed (confidence B-).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, group_ids, group_mean, step_mean, trained_only
from verl_hier.credit.trees import above
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class TreePSRAGOptions:
    """Weights of the two differences are our choice."""

    global_weight: NonNegative = 1.0
    """Weight of the value minus the task's mean."""
    local_weight: NonNegative = 1.0
    """Weight of the value minus the parent's."""
    damping: bool = True
    """Whether the sum is divided by the square root of the leaves below."""


def advantage(table: TurnTable, options: TreePSRAGOptions) -> Floats:
    """(T,) mean return of the leaves below a turn, against the task and against the turn before it."""
    returns = np.asarray(table["episodes.return"], np.float64)
    value = step_mean(table, returns[table.step_episode])
    keys = group_ids(table["episodes.group"])
    root = group_mean(returns, keys)[keys][np.asarray(table["episode"])]
    local = value - above(table["parent"], value, root)
    total = options.global_weight * (value - root) + options.local_weight * local
    if options.damping:
        total = total / np.sqrt(np.maximum(table["leaves"], 1))
    return trained_only(table, total)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "treeps_rag",
        advantage,
        TreePSRAGOptions,
        summary="mean leaf return below a turn, against the task and the turn before",
        source="arXiv 2601.06922 (reading notes)",
        requires=("episode", "parent", "leaves", "trained", "episodes.return", "episodes.group"),
        needs_tree=True,
        confidence="B",
    )
