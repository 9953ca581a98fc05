"""TreeRPO, siblings of a tree of segments against each other (arXiv 2506.05183), docs/methods/treerpo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, Floats, Scale, group_advantage, group_ids, group_mean, step_sum, trained_only
from verl_hier.credit.trees import children_mean, under_tasks
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class TreeRPOOptions:
    """The paper's form, where reading notes tell it; the exact denominator for continuous rewards was not seen."""

    least_spread: float = 0.1
    """Standard deviation among siblings below which they are left out of the loss (τ)."""
    scale: Scale = "sample"
    """What the difference to the siblings' mean is divided by."""
    eps: float = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: TreeRPOOptions) -> Credit:
    """Credit per turn: its value against its siblings'; a value is the mean of the values of the turns after it."""
    count = len(table)
    parent, _ = under_tasks(table["parent"], table["group"])
    trained = np.asarray(table["episodes.trained"], bool)
    reached = np.ones(parent.size)
    reached[:count] = step_sum(table, trained[table.step_episode]) > 0
    score = np.zeros(parent.size)
    score[np.asarray(table["episodes.leaf"])[trained]] = np.asarray(table["episodes.return"], np.float64)[trained]
    value = children_mean(parent, score, reached)[:count]
    siblings = group_ids(parent[:count])
    compared = reached[:count] > 0
    credit = group_advantage(value, siblings, where=compared, scale=options.scale, eps=options.eps, singleton="zero")
    wide = spread(value, siblings, compared) >= options.least_spread
    return Credit(trained_only(table, np.where(wide, credit, 0.0)), weight=wide.astype(np.float64))


def spread(value: Floats, siblings: np.ndarray, compared: np.ndarray) -> Floats:
    """(T,) population standard deviation of the values of each turn and its siblings."""
    mean = group_mean(value, siblings, compared)[siblings]
    return np.sqrt(group_mean((value - mean) ** 2, siblings, compared))[siblings]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "treerpo",
        advantage,
        TreeRPOOptions,
        summary="value of a segment against its siblings'; siblings that hardly differ leave the loss",
        source="arXiv 2506.05183 (reading notes)",
        requires=("group", "parent", "trained", "episodes.leaf", "episodes.return", "episodes.trained"),
        needs_tree=True,
        weighs=lambda options: "name: treerpo",
        confidence="C",
    )
