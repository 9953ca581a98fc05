"""HBPO, hierarchical token budgets (arXiv 2507.15844), docs/methods/hbpo.md.

The paper states the two terms; the pieces of the reward and the form of the baseline are our choice (confidence C).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    Normalisation,
    Scale,
    episode_sum,
    episodes_to_turns,
    group_advantage,
    group_ids,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class HBPOOptions:
    """The budget of an episode is the turn column `budget` of its last turn."""

    intra_weight: NonNegative = 1.0
    """Weight of the response against the others of its budget."""
    inter_weight: NonNegative = 1.0
    """Weight of the response against all of the task."""
    deviation: NonNegative = 1.0
    """Share of a correct answer's reward that is lost when the length is twice the budget; linear, at least 0."""
    scale: Scale = "sample"
    """Scale of both terms."""
    eps: NonNegative = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: HBPOOptions) -> Floats:
    """(T,) budget-shaped reward of the episode among its budget plus among the whole task."""
    budget = np.asarray(table["budget"])[np.asarray(table["episodes.leaf"])]
    reward = budget_rewards(table, budget, options)
    group, trained = table["episodes.group"], np.asarray(table["episodes.trained"], bool)
    kernel: Normalisation = {"scale": options.scale, "eps": options.eps, "singleton": "zero"}
    intra = group_advantage(reward, group_ids(group, budget), where=trained, **kernel)
    inter = group_advantage(reward, group_ids(group), where=trained, **kernel)
    return episodes_to_turns(table, options.intra_weight * intra + options.inter_weight * inter)


def budget_rewards(table: TurnTable, budget: NDArray, options: HBPOOptions) -> Floats:
    """(E,) the return within the budget, less of it beyond, and 0 for wrong answers."""
    length = episode_sum(table, table["n_tokens"])
    over = np.maximum(length / np.maximum(budget, 1) - 1.0, 0.0)
    kept = np.maximum(1.0 - options.deviation * over, 0.0)
    return np.maximum(np.asarray(table["episodes.return"], np.float64), 0.0) * kept


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "hbpo",
        advantage,
        HBPOOptions,
        summary="budget-shaped reward against its budget and against the whole task",
        source="arXiv 2507.15844",
        requires=("budget", "n_tokens", "episodes.leaf", *RETURN_COLUMNS),
        confidence="B",
    )
