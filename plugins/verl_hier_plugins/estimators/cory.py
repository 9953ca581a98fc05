"""CORY, pioneer and observer (arXiv 2410.06101), docs/methods/cory.md.

The released code trains each copy by token-level PPO; here a group baseline stands in for the critic unless one is
configured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Floats, code_mask, episode_sum, step_mean, trained_only, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class CORYOptions:
    """The exchange of the two roles every few steps is the schedule's job."""

    roles: tuple[str, ...] = ("pioneer", "observer")
    """Roles whose rewards are shared."""
    baseline: Literal["group", "critic"] = "group"
    """group: z-score per task and role; critic: minus the turn column `value`."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: CORYOptions) -> Floats:
    """(T,) the shared reward against the baseline."""
    shared = role_rewards(table, options)
    if options.baseline == "critic":
        return trained_only(table, shared - np.asarray(table["value"], np.float64))
    return turn_advantage(table, shared, ("group", "role"), eps=options.eps)


def role_rewards(table: TurnTable, options: CORYOptions) -> Floats:
    """(T,) for turns of the two roles the sum of both roles' rewards in the episode, for others their own."""
    member = code_mask(table, "role", options.roles)
    reward = np.asarray(table["reward"], np.float64)
    team = episode_sum(table, np.where(member, reward, 0.0))
    return np.where(member, step_mean(table, team[table.step_episode]), reward)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "cory",
        advantage,
        CORYOptions,
        summary="pioneer and observer share the sum of their rewards",
        source="arXiv 2410.06101; imdb_train/cory.py",
        requires=("group", "role", "reward", "trained", "episodes.return"),
        reads=("value",),
        confidence="B",
    )


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `cory_reward` where the table has what it takes, for any estimator to score by."""
    if all(table.code("role", role) >= 0 for role in CORYOptions.roles):
        table.turns["cory_reward"] = role_rewards(table, CORYOptions())
