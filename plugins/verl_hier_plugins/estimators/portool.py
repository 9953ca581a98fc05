"""PORTool, steps against their fork and against all trajectories (arXiv 2510.26020), docs/methods/portool.md.

The aggregation over descendants and the weights are not confirmed (confidence C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    episode_advantage,
    episodes_to_turns,
    group_advantage,
    optional,
    step_mean,
    trained_only,
)
from verl_hier.credit.trees import sibling_ids
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class PORToolOptions:
    """All constants are options, since the paper's are not confirmed; reviews of it name a decay and two weights."""

    fork_weight: NonNegative = 1.0
    """Weight of the step against its siblings of the fork."""
    trajectory_weight: NonNegative = 1.0
    """Weight of the leaf's z-score over the task; fork weight 0 and 1 here is GRPO."""
    aggregate: Literal["mean", "max"] = "mean"
    """How the returns of the leaves below a step are combined."""
    gamma: ZeroToOne = 1.0
    """Decay of a leaf's return with the number of turns between the step and the leaf."""
    outcome_weight: NonNegative = 1.0
    """Weight of the combined returns in the step reward."""
    score_weight: NonNegative = 0.0
    """Weight of the turn column `step_score` (tool call and format) in the step reward, if the table has it."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation of the trajectory term."""


def advantage(table: TurnTable, options: PORToolOptions) -> Floats:
    """(T,) weighted sum of the mean-centred step reward among siblings and of the leaf z-scores through the turn."""
    siblings = sibling_ids(table["parent"], table["group"])
    trained = np.asarray(table["trained"], bool)
    fork = group_advantage(step_rewards(table, options), siblings, where=trained, scale="none", singleton="zero")
    leaf = episodes_to_turns(table, episode_advantage(table, eps=options.eps))
    return trained_only(table, options.fork_weight * fork + options.trajectory_weight * leaf)


def step_rewards(table: TurnTable, options: PORToolOptions) -> Floats:
    """(T,) how well the leaves below a turn did, the near ones more, plus its own score."""
    turn, leaf = np.asarray(table["turn"]), np.asarray(table["episodes.leaf"])[table.step_episode]
    decay = options.gamma ** (turn[leaf] - turn[table.step_turn])
    returns = decay * np.asarray(table["episodes.return"], np.float64)[table.step_episode]
    if options.aggregate == "mean":
        reached = step_mean(table, returns)
    else:
        reached = np.full(len(table), -np.inf)
        np.maximum.at(reached, table.step_turn, returns)
    score = options.score_weight * np.asarray(optional(table, "step_score", np.zeros(len(table))))
    return options.outcome_weight * reached + score


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "portool",
        advantage,
        PORToolOptions,
        summary="step against its siblings of the fork plus the z-score of the leaves through it",
        source="arXiv 2510.26020 §3",
        requires=("group", "parent", "turn", "episodes.leaf", *RETURN_COLUMNS),
        needs_tree=True,
        confidence="B",
    )
