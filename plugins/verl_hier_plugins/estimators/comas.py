"""CoMAS, rewards from discussions between agents (recalled), docs/methods/comas.md.

The repository was not read, so every constant is an option.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, Normalisation, code_mask, group_advantage, group_ids, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class CoMASOptions:
    """`judge` on a turn is the normalised score in [0, 1] of the solution that it wrote or evaluated."""

    solver: str = "solver"
    """Role that writes solutions; its reward is the score."""
    evaluator: str = "evaluator"
    """Role that criticises them; its reward is 1 - score."""
    scorer: str = "scorer"
    """Role that scores; its only reward is the penalty for an unparsable turn."""
    unparsable: float = -1.0
    """Reward of a turn whose format is 0."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: CoMASOptions) -> Floats:
    """(T,) role rewards standardised over all turns of the agent in the batch (REINFORCE++ for each agent)."""
    trained = np.asarray(table["trained"], bool)
    rewards, keys = role_rewards(table, options), group_ids(table["agent"])
    kernel: Normalisation = {"eps": options.eps, "singleton": "zero"}
    return trained_only(table, group_advantage(rewards, keys, where=trained, **kernel))


def role_rewards(table: TurnTable, options: CoMASOptions) -> Floats:
    """(T,) zero-sum between solver and evaluator; unparsable turns get the penalty."""
    score = np.asarray(table["judge"], np.float64)
    solver, evaluator = code_mask(table, "role", [options.solver]), code_mask(table, "role", [options.evaluator])
    rewards = np.where(solver, score, np.where(evaluator, 1.0 - score, 0.0))
    return np.where(np.asarray(table["format"], np.float64) > 0, rewards, options.unparsable)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "comas",
        advantage,
        CoMASOptions,
        summary="solver against evaluator by the judge's score, standardised per agent",
        source="CoMAS (recalled)",
        requires=("agent", "role", "judge", "format", "trained"),
        needs_groups=False,
        own_rewards=True,
        confidence="C",
    )


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `comas_reward` where the table has what it takes, for any estimator to score by."""
    roles = (CoMASOptions.solver, CoMASOptions.evaluator)
    if {"judge", "format"} <= set(table.turns) and all(table.code("role", role) >= 0 for role in roles):
        table.turns["comas_reward"] = role_rewards(table, CoMASOptions())
