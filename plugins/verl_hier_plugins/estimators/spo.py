"""SPO, segment advantages on trees (arXiv 2505.23564), docs/methods/spo.md.

Node values and TreePO's form are those of released code; dropping segments by the prover advantage is confidence B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Credit,
    Floats,
    Ints,
    group_advantage,
    group_ids,
    group_mean,
    step_mean,
    trained_only,
    whiten,
)
from verl_hier.credit.trees import above, children_mean, node_difference, sibling_ids
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class SPOOptions:
    """Defaults are SPO-tree's."""

    form: Literal["rloo", "grpo", "treepo_plain", "treepo_siblings"] = "rloo"
    """rloo: value minus the parent's; grpo: divided by the standard deviation of the rewards below the parent;
    treepo_plain: as rloo with 0 above the first segment; treepo_siblings: values z-scored among siblings first."""
    only_child: Literal["raw", "zero"] = "raw"
    """What a node without siblings has in the form `treepo_siblings`: its raw value, as in the released code, or 0."""
    drop_zero: bool = True
    """Whether segments whose advantage plus prover advantage is 0 are left out of the loss (rloo and grpo forms)."""
    best_of: Count = 4
    """K of the best-of-K prover, 1 - (1 - v) ** K; 0 goes by the advantage alone."""
    most_probable: ZeroToOne | None = None
    """Tokens that were sampled with at least this probability leave the loss, since they decide little (0.9 in the
    released code); null: none do."""
    whiten: bool = False
    """Whether the credit of the whole batch is whitened over its tokens at the end, as in the released trainer."""


def advantage(table: TurnTable, options: SPOOptions) -> Credit:
    """Credit per turn: value of the segment minus the value of the one before it."""
    parent = np.asarray(table["parent"])
    value = children_mean(parent, table["return"])
    if options.form == "treepo_siblings":
        siblings = sibling_ids(parent, table["group"])
        value = group_advantage(value, siblings, scale="population", eps=0.0, singleton=options.only_child)
    if options.form.startswith("treepo"):
        return Credit(trained_only(table, node_difference(parent, value)))
    return on_tokens(table, options, segments(table, options, parent, value))


def segments(table: TurnTable, options: SPOOptions, parent: Ints, value: Floats) -> Credit:
    """SPO's own forms, with the mean of the first segments above them."""
    siblings = sibling_ids(parent, table["group"])
    firsts = np.where(parent < 0, siblings, 0)
    root = group_mean(value, firsts, parent < 0)[firsts]
    gain = node_difference(parent, value, root)
    difference = gain
    if options.form == "grpo":
        difference = gain / (reward_spread(table, parent) + 1e-8)
    if not options.drop_zero:
        return Credit(trained_only(table, difference))
    prover = np.zeros_like(value)
    if options.best_of:
        best = 1.0 - (1.0 - np.clip(value, 0.0, 1.0)) ** options.best_of
        root_best = 1.0 - (1.0 - np.clip(root, 0.0, 1.0)) ** options.best_of
        prover = node_difference(parent, best, root_best)
    kept = np.abs(gain + prover) > 1e-12
    return Credit(trained_only(table, np.where(kept, difference, 0.0)), weight=kept.astype(np.float64))


def on_tokens(table: TurnTable, options: SPOOptions, credit: Credit) -> Credit:
    """Leave out tokens that were nearly certain, and whiten over the others."""
    trained = np.asarray(table["trained"], bool)
    counted = np.ones(len(table)) if credit.weight is None else np.asarray(credit.weight, np.float64)
    if options.most_probable is not None:
        credit.tokens = np.exp(np.asarray(table["tokens.logprob"], np.float64)) < options.most_probable
        counted = counted * np.bincount(table["tokens.turn"], credit.tokens, len(table))
    elif options.whiten:
        counted = counted * np.asarray(table["n_tokens"], np.float64)
    if options.whiten:
        credit.values = trained_only(table, whiten(credit.values, trained, weights=counted))
    return credit


def reward_spread(table: TurnTable, parent: Ints) -> Floats:
    """(T,) population standard deviation of the leaf returns below the parent, or of the whole task."""
    returns = np.asarray(table["episodes.return"], np.float64)
    steps = returns[table.step_episode]
    inside = np.sqrt(step_mean(table, (steps - step_mean(table, steps)[table.step_turn]) ** 2))
    keys = group_ids(table["episodes.group"])
    whole = np.sqrt(group_mean((returns - group_mean(returns, keys)[keys]) ** 2, keys))
    return above(parent, inside, whole[keys][np.asarray(table["episode"])])


def weighs(options: SPOOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    return "drop_zero: true" if options.drop_zero and not options.form.startswith("treepo") else ""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "spo",
        advantage,
        SPOOptions,
        summary="value of a segment minus the value of the one before it",
        source="arXiv 2505.23564 §4.3; SPO tree_episode_generator.py; TreePO compute_spo_advantage",
        requires=("group", "parent", "return", "trained"),
        reads=("tokens.logprob",),
        needs_tree=True,
        weighs=weighs,
        confidence="A",
    )
