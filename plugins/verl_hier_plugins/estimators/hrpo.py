"""HRPO of MasHost (arXiv 2506.08507), docs/methods/hrpo.md.

Paper, from notes: confidence B for the two terms, C for the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import episode_advantage, episodes_to_turns, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class HRPOOptions:
    """Turns are actions on the agent graph; episodes are sampled graphs."""

    action_weight: float = 1.0
    """Weight of the absolute reward of the action (cost, validity); 0 is GRPO."""
    eps: float = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: HRPOOptions) -> NDArray[np.float64]:
    """(T,) z-score of the graph's return over the task plus the weighted reward of the action itself."""
    graphs = episodes_to_turns(table, episode_advantage(table, eps=options.eps))
    return trained_only(table, graphs + options.action_weight * np.asarray(table["step_score"], np.float64))


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
            "hrpo",
            advantage,
            HRPOOptions,
            summary="z-score of the agent graph plus the absolute reward of the action",
            source="arXiv 2506.08507 (reading notes)",
            doc="methods/hrpo.md",
            requires=("trained", "episodes.return", "episodes.group", "episodes.trained", "step_score"),
            confidence="B",
        )
    ]
