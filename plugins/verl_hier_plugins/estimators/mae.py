"""MAE, one model as proposer, solver and judge (arXiv 2510.23595), docs/methods/mae.md.

The rewards are those of the released code; the credit is the whitening of REINFORCE++.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Bools, Floats, code_mask, episode_sum, optional, step_mean, step_sum, trained_only, whiten
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MAEOptions:
    """`judge` is the judge's score of a question or an answer, `format` whether the tags of a turn parse."""

    proposer: str = "proposer"
    """Role that writes questions."""
    solver: str = "solver"
    """Role that answers them."""
    judge: str = "judge"
    """Role that scores both."""
    threshold: ZeroToOne = 0.7
    """Least quality of a question whose difficulty counts."""


def advantage(table: TurnTable, options: MAEOptions) -> Floats:
    """(T,) role rewards, whitened over the batch's tokens."""
    trained = np.asarray(table["trained"], bool)
    return trained_only(table, whiten(role_rewards(table, options), trained, weights=table["n_tokens"]))


def role_rewards(table: TurnTable, options: MAEOptions) -> Floats:
    """(T,) proposer: mean of quality, difficulty and format (no difficulty below the threshold, nothing without a
    question, or with one that a pool of questions knows, which it says in the column `fresh`); solver: half score, half
    format; judge: format."""
    score, form = np.asarray(table["judge"], np.float64), np.asarray(table["format"], np.float64)
    form = form * optional(table, "fresh", 1.0)
    # A step may lack a role, where no question was sound; a table without any of them is another worker's.
    code_mask(table, "role", roles_of(options))
    proposer, solver, judge = (np.asarray(table["role"]) == table.code("role", name) for name in roles_of(options))
    hard = np.where(score >= options.threshold, 1.0 - solver_score(table, score, solver), 0.0)
    proposed = np.where(form > 0, (score + hard + form) / 3.0, 0.0)
    rewards = np.where(solver, 0.5 * score + 0.5 * form, np.where(judge, form, 0.0))
    return np.where(proposer, proposed, rewards)


def roles_of(options: MAEOptions) -> tuple[str, str, str]:
    """Proposer, solver and judge."""
    return options.proposer, options.solver, options.judge


def solver_score(table: TurnTable, score: Floats, solver: Bools) -> Floats:
    """(T,) mean solver score over the episodes through a turn, 1 where nobody answered."""
    count, total = episode_sum(table, solver), episode_sum(table, solver * score)
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    answered = (count > 0)[table.step_episode]
    known = step_sum(table, answered) > 0
    return np.where(known, step_mean(table, mean[table.step_episode], answered), 1.0)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "mae",
        advantage,
        MAEOptions,
        summary="proposer, solver and judge rewards, whitened over the batch",
        source="arXiv 2510.23595; MAE rewards/reward_managers.py",
        requires=("role", "judge", "format", "n_tokens", "trained", "episodes.return"),
        reads=("fresh",),
        needs_groups=False,
        own_rewards=True,
        named_roles=roles_of,
        confidence="A",
    )


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `mae_reward` where the table has what it takes, for any estimator to score by."""
    roles = (MAEOptions.proposer, MAEOptions.solver, MAEOptions.judge)
    if {"judge", "format"} <= set(table.turns) and all(table.code("role", role) >= 0 for role in roles):
        table.turns["mae_reward"] = role_rewards(table, MAEOptions())
