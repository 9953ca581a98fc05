"""AT²PO, credit of turns by the values of a tree of turns (arXiv 2601.04767), docs/methods/at2po.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Credit,
    Floats,
    episode_advantage,
    step_sum,
    trained_only,
    turn_credit,
)
from verl_hier.credit.trees import children_mean, under_tasks
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class AT2POOptions:
    """Defaults are the released script's."""

    value: Literal["child_softmax", "child_mean", "leaf_mean"] = "child_softmax"
    """Value of a turn: mean of the turns that follow it, weighted by the softmax of their entropies or equally, or
    mean of the leaves below it."""
    advantage: Literal["node_value", "diff_parent", "diff_global", "diff_localglobal"] = "node_value"
    """The value itself; minus that of the turn before; minus that of the task; or the sum of both differences."""
    normalise: bool = True
    """Whether the returns of a task's leaves are centred and divided by their population standard deviation first."""
    entropy: Literal["surprise", "entropy"] = "surprise"
    """What the softmax takes as the entropy of a turn: the mean -log p of its tokens, as the released code, or the
    column `entropy`."""
    eps: float = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: AT2POOptions) -> Floats:
    """(T,) value of each turn of its task's tree, or its difference to the values above it."""
    parent, task = under_tasks(table["parent"], table["group"])
    value = values(table, options, parent)
    own, root, above = value[: len(table)], value[task], value[parent[: len(table)]]
    forms = {
        "node_value": own,
        "diff_parent": own - above,
        "diff_global": own - root,
        "diff_localglobal": 2 * own - root - above,
    }
    return trained_only(table, forms[options.advantage])


def values(table: TurnTable, options: AT2POOptions, parent: np.ndarray) -> Floats:
    """(T + G,) value of each turn and of each task; 0 where no trained leaf is below.

    Args:
        table: the turn table.
        options: see there.
        parent: (T + G,) of `under_tasks`.
    """
    returns = np.asarray(table["episodes.return"], np.float64)
    trained = np.asarray(table["episodes.trained"], bool)
    if options.normalise:
        returns = episode_advantage(table, scale="population", singleton="zero", eps=options.eps)
    leaf = np.asarray(table["episodes.leaf"])[trained]
    score = np.zeros(parent.size)
    score[leaf] = returns[trained]
    reached = np.ones(parent.size)
    reached[: len(table)] = step_sum(table, trained[table.step_episode])
    if options.value == "leaf_mean":
        return children_mean(parent, score, reached)
    votes = (reached > 0).astype(np.float64)
    if options.value == "child_softmax":
        votes[: len(table)] *= np.exp(entropies(table, options.entropy))
    return children_mean(parent, score, votes)


def entropies(table: TurnTable, source: Literal["surprise", "entropy"]) -> Floats:
    """(T,) entropy of each turn: the mean -log p of its tokens, or the column `entropy`."""
    if source == "entropy":
        return np.asarray(table["entropy"], np.float64)
    return turn_credit(table, Credit(-np.asarray(table["tokens.logprob"], np.float64), per="token"))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "at2po",
        advantage,
        AT2POOptions,
        summary="value of a turn in its tree: the turns after it, weighted by the softmax of their entropies",
        source="arXiv 2601.04767; zzfoutofspace/ATPO vllm_rollout_with_tools_tree_offline.py",
        requires=("group", "parent", "tokens.turn", "tokens.logprob", "episodes.leaf", *RETURN_COLUMNS),
        needs_tree=True,
        confidence="A",
    )
