"""Adapters of the recorded cases of tree methods: rows are leaves, paths or nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.builtin_parts import plugin_module
from tests.conformance.layout import Case, Outputs, on_mask
from verl_hier.credit import step_mean
from verl_hier.credit.estimate import estimate
from verl_hier.credit.tables import make_table
from verl_hier.credit.trees import subtree_sum
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.builtin import credit_of, estimator


def tree_grpo(case: Case) -> Outputs:
    """Rows are leaves of trees of a prompt."""
    tree = np.unique(case["tree"], return_inverse=True)[1]
    table = make_table({"group": case["prompt"], "reward": case["score"]}, episodes={"tree": tree})
    options = {"eps": case["epsilon"], "singleton": "raw"}
    parts = {name: credit_of("tree_grpo", table, variant=name, **options) for name in ("inter", "tree", "tree_2norm")}
    intra = credit_of("tree_grpo", table, variant="tree_inner", **options)
    return {**parts, "intra": intra, "tree_full": on_mask(parts["tree"], case["response_mask"])}


def without_root(case: Case, leaf_returns: NDArray[np.float64], **columns: Any) -> TurnTable:
    """Turns of a tree whose node 0 is the prompt; `leaf_returns` in the order of the nodes."""
    parent = np.asarray(case["parent"])[1:] - 1
    return make_table({"parent": parent, **columns}, episodes={"return": leaf_returns})


def tree_diff(case: Case) -> Outputs:
    """Node scores; the prompt's own score is 0 by definition."""
    score, leaf = np.asarray(case["leaf_score"], np.float64), np.asarray(case["is_leaf"], bool)
    table = without_root(case, score[leaf])
    table.episodes["tree"] = np.zeros(int(leaf.sum()), np.int64)
    values = credit_of("tree_diff", table, margin=case["margin"], normalise="none")
    return {
        "subtree_leaf_sum": subtree_sum(case["parent"], np.where(leaf, score, 0.0)),
        "final_score": np.append(0.0, values),
    }


def treerl_table(case: Case) -> tuple[TurnTable, dict[str, str], int]:
    """The table of a tree, the options of the estimator that its case names, and how many leaves there are."""
    reward = np.empty(len(case["parent"]))
    reward[case["leaf_ids"]] = case["leaf_reward"]
    is_leaf = np.isin(np.arange(len(reward)), case["leaf_ids"])
    table = without_root(case, reward[is_leaf], n_tokens=np.asarray(case["n_tokens"])[1:])
    style, damping = case["overall_norm_style"], case["weighted_value_style"]
    centre = style if style in ("token", "step") else "none"
    options = {"centre": centre, "damping": "none" if damping == "original" else damping}
    return table, options, int(is_leaf.sum())


def treerl(case: Case) -> Outputs:
    """Accumulated scores, node values and rewards along every leaf's path."""
    table, named, _ = treerl_table(case)
    is_leaf = np.isin(np.arange(len(case["parent"])), case["leaf_ids"])
    spec, module = estimator("treerl"), plugin_module("estimators.treerl")
    options = spec.options(**named)
    scores = module.leaf_scores(table, options)
    value, root = module.node_values(table, options)
    leaves = np.append(len(scores), table["leaves"])
    values = np.append(root[0], value)
    spread = np.zeros(len(is_leaf))
    spread[is_leaf] = scores
    total = np.asarray(estimate(spec, table, options).values)
    paths = [table.step_turn[table.step_episode == episode] for episode in range(len(scores))]
    return {
        "accumulated_before_weight": subtree_sum(case["parent"], spread),
        "leaf_count": leaves,
        "accumulated_after_weight": values * leaves,
        "path_value_and_state": [
            [[str(turn + 1), float(total[turn] - value[turn]), float(value[turn])] for turn in path] for path in paths
        ],
        "final_reward_use_state_value": [[float(total[turn]) for turn in path] for path in paths],
    }


def path_table(case: Case) -> tuple[TurnTable, NDArray[np.int64]]:
    """Turns from path ids such as `u0#1-0#2-1`, and the episode of every row."""
    masks = np.asarray(case["response_mask"])
    nodes: dict[tuple[str, ...], int] = {}
    parent: list[int] = []
    group: list[str] = []
    tokens: list[int] = []
    leaf: list[int] = []
    for path, mask in zip(case["path"], masks, strict=True):
        parts = tuple(path.split("#"))
        for depth in range(2, len(parts) + 1):
            if parts[:depth] not in nodes:
                nodes[parts[:depth]] = len(parent)
                parent.append(nodes.get(parts[: depth - 1], -1))
                group.append(parts[0])
                # The leaf's advantage is whitened over the tokens of its row, so the leaf may have all of them.
                tokens.append(int(mask.sum()) if depth == len(parts) else 0)
        leaf.append(nodes[parts])
    table = make_table({"parent": parent, "group": np.asarray(group), "n_tokens": tokens})
    episode_of = {int(turn): number for number, turn in enumerate(table["episodes.leaf"])}
    rows = np.asarray([episode_of[turn] for turn in leaf])
    table.episodes["return"] = np.asarray(case["score"], np.float64)[np.argsort(rows)]
    table.turns["return"] = step_mean(table, table.episodes["return"][table.step_episode])
    return table, rows


def treepo(case: Case) -> Outputs:
    """Four variants of TreePO, the group-wise reward without whitening, and TreePO's segment advantages.

    Segment i of a path covers the tokens from i * step_size on; what is behind the last segment has no advantage.
    """
    table, rows = path_table(case)
    last = np.flatnonzero(np.append(table.step_episode[1:] != table.step_episode[:-1], True))
    mask = np.asarray(case["response_mask"])

    def leaves(**options: Any) -> NDArray[np.float64]:
        return credit_of("treepo", table, **options)[last][rows]

    out: Outputs = {}
    for average, name in (("group_size", "group_size"), ("plain", "average")):
        for drop, label in ((False, "all"), (True, "dropnostd")):
            out[f"treepo_{name}_{label}"] = on_mask(leaves(average=average, drop_flat=drop), mask)
    grouped = leaves(whiten=False, average="group_size", count_self=True)
    out["group_wise_reward"] = dict(zip(case["path"], grouped, strict=True))
    for form, label in (("treepo_plain", "plain"), ("treepo_siblings", "siblingnorm")):
        values = credit_of("spo", table, form=form)
        paths = [values[table.step_turn[table.step_episode == row]].tolist() for row in rows]
        out[f"segment_adv_{label}"] = dict(zip(case["path"], paths, strict=True))
    width = mask.shape[1]
    segment = np.arange(width) // case["step_size"]
    # Tokens behind the last segment have no advantage.
    ended = [np.append(path, 0.0)[np.minimum(segment, len(path))] for path in paths]
    out["spo"] = mask * np.stack(ended)
    return out
