"""HRPO of MasHost (arXiv 2506.08507), docs/methods/hrpo.md.

The weight of the second term is our choice (confidence C).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import RETURN_COLUMNS, Floats, episode_advantage, episodes_to_turns, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class HRPOOptions:
    """Turns are actions on the agent graph; episodes are sampled graphs."""

    action_weight: NonNegative = 1.0
    """Weight of the absolute reward of the action (cost, validity); 0 is GRPO."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: HRPOOptions) -> Floats:
    """(T,) z-score of the graph's return over the task plus the weighted reward of the action itself."""
    graphs = episodes_to_turns(table, episode_advantage(table, eps=options.eps))
    return trained_only(table, graphs + options.action_weight * np.asarray(table["step_score"], np.float64))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "hrpo",
        advantage,
        HRPOOptions,
        summary="z-score of the agent graph plus the absolute reward of the action",
        source="arXiv 2506.08507 (reading notes)",
        requires=("step_score", *RETURN_COLUMNS),
        confidence="B",
    )
