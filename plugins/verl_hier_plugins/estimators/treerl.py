"""TreeRL, process rewards from tree search (arXiv 2506.11902), docs/methods/treerl.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Bools,
    Floats,
    group_advantage,
    group_ids,
    group_mean,
    group_sum,
    of_episodes,
    step_sum,
    term,
    trained_only,
)
from verl_hier.credit.trees import above, inherit_zero
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec

_EXPONENT = {"sqrt": 0.5, "uniform": 1.0, "none": 0.0}
_NO_DIFFERENCE = 1e-8


@dataclass(frozen=True)
class TreeRLOptions:
    """Defaults are the released code's."""

    centre: Literal["none", "token", "step"] = "none"
    """Whether leaf scores are centred by their mean over the tokens of their paths, or over the steps and the task."""
    state_value: bool = True
    """Whether the value of the node joins its difference to the parent."""
    damping: Literal["sqrt", "uniform", "none"] = "sqrt"
    """What accumulated scores are divided by: the square root of the number of trained leaves, their number, or 1."""
    inherit: bool = True
    """Whether a node without difference takes the difference of the node before it."""


def advantage(table: TurnTable, options: TreeRLOptions) -> Floats:
    """(T,) value of the turn minus its parent's, plus the value; values from leave-one-out scores of all leaves."""
    value, root = node_values(table, options)
    parent = np.asarray(table["parent"])
    before = above(parent, value, root)
    difference = value - before
    if options.inherit:
        difference = inherit_zero(parent, np.where(np.abs(difference) < _NO_DIFFERENCE, 0.0, difference))
    term("gain over the node before", difference, value=value, value_of_the_node_before=before)
    if options.state_value:
        term("value of the node", value)
    return trained_only(table, difference + value if options.state_value else difference)


def all_leaves(table: TurnTable) -> Bools:
    """(E,) episodes whose returns make the values: the trained leaves, and those that were grown and not kept."""
    return np.asarray(table["episodes.trained"], bool) | np.asarray(table["episodes.withheld"], bool)


def leaf_scores(table: TurnTable, options: TreeRLOptions) -> Floats:
    """(E,) return minus the mean of the other leaves of the task, centred by the option; 0 for evaluation."""
    returns, keys, leaf = table["episodes.return"], group_ids(table["episodes.group"]), all_leaves(table)
    scores = group_advantage(returns, keys, where=leaf, centre="leave_one_out", scale="none", singleton="zero")
    of_episodes(scores)
    if options.centre == "none":
        return scores
    length = np.asarray(table["n_tokens"], np.float64) if options.centre == "token" else np.ones(len(table))
    task = float(options.centre == "step")  # the task above the first turns is a step too
    votes = np.bincount(table.step_episode, length[table.step_turn], len(scores)) + task
    return np.where(leaf, scores - group_mean(scores, keys, votes * leaf)[keys], 0.0)


def node_values(table: TurnTable, options: TreeRLOptions) -> tuple[Floats, Floats]:
    """(T,) value of each turn and (T,) value of the task above its first turn."""
    scores, keys = leaf_scores(table, options), group_ids(table["episodes.group"])
    leaf, trained = (np.asarray(mask, np.float64) for mask in (all_leaves(table), table["episodes.trained"]))

    def value(total: Floats, leaves: Floats, kept: Floats) -> Floats:
        return total / (np.maximum(kept, 1.0) ** _EXPONENT[options.damping] * np.maximum(leaves, 1.0))

    turns = value(*(step_sum(table, each[table.step_episode]) for each in (scores, leaf, trained)))
    tasks = value(*(group_sum(each, keys) for each in (scores, leaf, trained)))
    return turns, tasks[keys][np.asarray(table["episode"])]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "treerl",
        advantage,
        TreeRLOptions,
        summary="difference of leave-one-out node values along the tree, plus the value",
        source="arXiv 2506.11902 §3.3; THUDM/TreeRL tree_node.py, parallel_mcts.py",
        requires=("episode", "parent", *RETURN_COLUMNS, "episodes.withheld"),
        needs_tree=True,
        confidence="A",
    )
