"""TreePO, advantages over all ancestor subgroups (arXiv 2508.17445), docs/methods/treepo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import RETURN_COLUMNS, Credit, Floats, Shared, group_ids, group_mean, owner_weighs, share, whiten
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class TreePOOptions:
    """Defaults are the released script's."""

    average: Literal["plain", "group_size"] = "plain"
    """Whether the subgroups of a leaf all weigh alike, or by their number of leaves."""
    drop_flat: bool = False
    """Whether subgroups whose leaves all agree are left out."""
    count_self: bool = False
    """Whether subgroups of one leaf count too, the leaf by itself included, with advantage 0; by `group_size` this is
    the reward of the released `group_wise_reward`."""
    whiten: bool = True
    """Whether the whole batch is whitened over its tokens at the end."""
    shared: Shared = "repeat"
    """What a turn gets that several leaves share."""


def advantage(table: TurnTable, options: TreePOOptions) -> Credit:
    """Credit per step: the leaf against the leaves under each of its ancestors, averaged over the ancestors."""
    steps = leaf_advantages(table, options)[table.step_episode]
    trained = np.asarray(table["trained"], bool)[table.step_turn]
    if options.whiten:
        tokens = np.asarray(table["n_tokens"], np.float64)[table.step_turn]
        steps = whiten(steps, trained, weights=tokens)
    return share(table, steps, options.shared)


def leaf_advantages(table: TurnTable, options: TreePOOptions) -> Floats:
    """(E,) weighted mean over the ancestors of a leaf, the task included, of return minus the subgroup's mean."""
    returns = np.asarray(table["episodes.return"], np.float64)
    trained = np.asarray(table["episodes.trained"], bool)
    step_episode, step_turn = table.step_episode, table.step_turn
    inner = np.flatnonzero(step_turn != np.asarray(table["episodes.leaf"])[step_episode])
    episode = np.append(np.arange(len(returns)), step_episode[inner])
    groups = group_ids(table["episodes.group"])
    node = np.append(groups, step_turn[inner] + len(returns))
    keys = group_ids(node)
    votes = trained[episode].astype(np.float64)
    size = np.bincount(keys, votes)[keys]
    mean = group_mean(returns[episode], keys, votes)[keys]
    spread = np.bincount(keys, votes * (returns[episode] - mean) ** 2)[keys]
    used = ((size > 1) | options.count_self) & trained[episode]
    if options.drop_flat:
        used &= spread > 1e-12
    value = returns[episode] - mean
    if not options.count_self:  # the only leaf of a task keeps its raw score
        alone = (np.arange(len(episode)) < len(returns)) & (size == 1) & trained[episode]
        value, used = np.where(alone, returns[episode], value), used | alone
    weight = np.where(used, size if options.average == "group_size" else 1.0, 0.0)
    total = np.bincount(episode, weight * value, len(returns))
    votes_of = np.bincount(episode, weight, len(returns)) + (1.0 if options.count_self else 0.0)
    return np.divide(total, votes_of, out=np.zeros_like(total), where=votes_of > 0)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "treepo",
        advantage,
        TreePOOptions,
        summary="leaf against the leaves under each of its ancestors, averaged over the ancestors",
        source="arXiv 2508.17445; multimodal-art-projection/TreePO core_algos.py",
        requires=("n_tokens", "episodes.leaf", *RETURN_COLUMNS),
        granularity="step",
        needs_tree=True,
        weighs=lambda options: owner_weighs(options.shared),
        confidence="A",
    )
