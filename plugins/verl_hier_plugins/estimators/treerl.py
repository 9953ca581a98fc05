"""TreeRL, process rewards from tree search (arXiv 2506.11902), docs/methods/treerl.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    episode_advantage,
    group_ids,
    group_mean,
    group_sum,
    step_sum,
    trained_only,
)
from verl_hier.credit.trees import above, inherit_zero
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class TreeRLOptions:
    """Defaults are the released code's."""

    centre: Literal["none", "token", "step"] = "none"
    """Whether leaf scores are centred by their mean over the tokens or steps of their paths."""
    state_value: bool = True
    """Whether the value of the node joins its difference to the parent."""
    damping: Literal["sqrt", "none"] = "sqrt"
    """Whether accumulated scores are divided by the square root of the number of leaves."""
    inherit: bool = True
    """Whether a node without difference takes the difference of the node before it."""


def advantage(table: TurnTable, options: TreeRLOptions) -> Floats:
    """(T,) value of the turn minus its parent's, plus the value; values from leave-one-out scores of the leaves."""
    value, root = node_values(table, options)
    parent = np.asarray(table["parent"])
    difference = value - above(parent, value, root)
    if options.inherit:
        difference = inherit_zero(parent, difference)
    return trained_only(table, difference + value if options.state_value else difference)


def leaf_scores(table: TurnTable, options: TreeRLOptions) -> Floats:
    """(E,) return minus the mean of the other leaves of the task, centred by the option; 0 for untrained ones."""
    scores = episode_advantage(table, centre="leave_one_out", scale="none", singleton="zero")
    if options.centre == "none":
        return scores
    length = np.ones(len(table.step_turn))
    if options.centre == "token":
        length = np.asarray(table["n_tokens"], np.float64)[table.step_turn]
    trained = np.asarray(table["episodes.trained"], bool)
    votes = np.bincount(table.step_episode, length, len(scores)) * trained
    keys = group_ids(table["episodes.group"])
    return np.where(trained, scores - group_mean(scores, keys, votes)[keys], 0.0)


def node_values(table: TurnTable, options: TreeRLOptions) -> tuple[Floats, Floats]:
    """(T,) value of each turn and (T,) value of the task above its first turn."""
    scores = leaf_scores(table, options)
    trained = np.asarray(table["episodes.trained"], np.float64)
    leaves = np.maximum(step_sum(table, trained[table.step_episode]), 1.0)
    keys = group_ids(table["episodes.group"])
    everyone = np.maximum(group_sum(trained, keys), 1.0)
    power = 1.5 if options.damping == "sqrt" else 1.0
    total = group_sum(scores, keys)
    root = (total / everyone**power)[keys][np.asarray(table["episode"])]
    return step_sum(table, scores[table.step_episode]) / leaves**power, root


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "treerl",
        advantage,
        TreeRLOptions,
        summary="difference of leave-one-out node values along the tree, plus the value",
        source="arXiv 2506.11902 §3.3; THUDM/TreeRL parallel_mcts.py",
        requires=("episode", "parent", *RETURN_COLUMNS),
        needs_tree=True,
        confidence="A",
    )
