"""Tree-GRPO, leaves against their task and their tree (arXiv 2509.21240), docs/methods/tree_grpo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Credit,
    Floats,
    Shared,
    Singleton,
    episode_advantage,
    group_ids,
    group_mean,
    owner_weighs,
    share,
    step_mean,
    term,
    turn_advantage,
)
from verl_hier.credit.trees import above
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class TreeGRPOOptions:
    """Defaults are the paper's, but for trees with one leaf."""

    variant: Literal["tree", "inter", "tree_inner", "tree_2norm"] = "tree"
    """tree: inter + intra; inter: over the task alone (GRPO); tree_inner: inside the tree alone; tree_2norm: the
    inter advantage normalised again inside the tree."""
    singleton: Singleton = "zero"
    """A tree with one leaf: the released code passes its raw score through (`raw`)."""
    shared: Shared = "repeat"
    """What a turn gets that several leaves share."""
    eps: NonNegative = 1e-6
    """Added to the standard deviations."""


def advantage(table: TurnTable, options: TreeGRPOOptions) -> Credit:
    """Credit per step: the leaf's z-score over the task plus its z-score inside its tree."""
    inter = episode_advantage(table, eps=options.eps)
    if options.variant in ("tree", "inter"):
        term("leaf among the leaves of the task", inter, "episode")
    scores = inter if options.variant == "tree_2norm" else None
    intra = episode_advantage(
        table, scores=scores, group_by=("group", "tree"), eps=options.eps, singleton=options.singleton
    )
    if options.variant != "inter":
        term("leaf among the leaves of its tree", intra, "episode")
    values = {"inter": inter, "tree": inter + intra}.get(options.variant, intra)
    return share(table, values[table.step_episode], options.shared)


@dataclass(frozen=True)
class TreeDiffOptions:
    """The node score of the released code's `tree_diff` mode, which is not the paper's default."""

    margin: NonNegative = 0.1
    """Improvement over the parent that is not rewarded."""
    normalise: Literal["group", "none"] = "group"
    """Whether node scores are z-scored over the turns of the task; not confirmed in the released code."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def tree_diff(table: TurnTable, options: TreeDiffOptions) -> Floats:
    """(T,) node scores, z-scored over the task by default."""
    scores = node_scores(table, options.margin)
    if options.normalise == "group":
        return turn_advantage(table, scores, ("group",), eps=options.eps)
    return np.where(np.asarray(table["trained"], bool), scores, 0.0)


def node_scores(table: TurnTable, margin: float) -> Floats:
    """(T,) (v + max(v - v_parent - margin, 0)) / sqrt(leaves), v the mean return of the leaves below a turn."""
    returns = np.asarray(table["episodes.return"], np.float64)
    value = step_mean(table, returns[table.step_episode])
    trees = group_ids(table["episodes.tree"])
    first = np.asarray(table["episode"])
    root = group_mean(returns, trees)[trees][first]
    gain = value - above(table["parent"], value, root) - margin
    return (value + np.maximum(gain, 0.0)) / np.sqrt(np.maximum(table["leaves"], 1))


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
            "tree_grpo",
            advantage,
            TreeGRPOOptions,
            summary="leaf z-score over the task plus z-score inside its tree",
            source="arXiv 2509.21240 §3; AMAP-ML/Tree-GRPO ray_trainer_ts.py",
            requires=("episodes.tree", *RETURN_COLUMNS),
            granularity="step",
            needs_tree=True,
            weighs=lambda options: owner_weighs(options.shared),
            confidence="A",
        ),
        EstimatorSpec(
            "tree_diff",
            tree_diff,
            TreeDiffOptions,
            summary="mean leaf return below a turn plus its gain over the parent, damped by the leaves",
            source="AMAP-ML/Tree-GRPO tree_node.py (reward_mode tree_diff)",
            requires=("group", "episode", "parent", "leaves", "trained", "episodes.return", "episodes.tree"),
            needs_tree=True,
            confidence="B",
        ),
    ]
