"""CCPO, what a role adds to the other's own answer (arXiv 2603.21563), docs/methods/ccpo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Floats, Scale, group_ids, group_mean, step_mean, turn_advantage
from verl_hier.credit.paths import code_mask
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class CCPOOptions:
    """Defaults are the released script's."""

    roles: tuple[str, ...] = ("thinker",)
    """Roles that get the bonus: those that the solo episodes are without."""
    coefficient: NonNegative = 0.2
    """Factor of the bonus."""
    event_bonus: bool = True
    """The bonus is 1 where the team is right and the others alone are wrong, -1 where it is the other way round, else
    0; off: half the difference of both verdicts."""
    group_solo_baseline: bool = True
    """Whether the verdict on the others alone is the mean over the solo episodes of the task, or that of the one solo
    episode that belongs to the joint one."""
    right_above: float = 0.5
    """Return above which an episode counts as right (1), otherwise as wrong (-1)."""
    reward: Literal["bonus", "history"] = "bonus"
    """`history`: the column `history_reward` of the schedule `ccpo_history`, as in the first version of the paper."""
    norm_by_std: bool = False
    """Whether advantages are divided by the sample standard deviation, which washes the bonus out."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: CCPOOptions) -> Floats:
    """(T,) reward of the turn's role in its episode, centred among the episodes of the task.

    Raises:
        CreditError: when `reward: history` has no schedule that fills its column.
    """
    scores = history(table) if options.reward == "history" else rewards(table, options)
    scale: Scale = "sample" if options.norm_by_std else "none"
    return turn_advantage(table, scores, ("group", "role"), weight_by="role", scale=scale, eps=options.eps)


def rewards(table: TurnTable, options: CCPOOptions) -> Floats:
    """(T,) verdict on the episode of each turn, with the bonus where its role has one."""
    joint = verdicts(own_returns(table), options.right_above)
    alone = verdicts(np.asarray(table["solo_return"], np.float64), options.right_above)
    if options.group_solo_baseline:
        alone = task_mean(table, alone)
    if options.event_bonus:
        bonus = ((joint > 0) & (alone < 0)).astype(np.float64) - ((joint < 0) & (alone > 0))
    else:
        bonus = (joint - alone) / 2
    return joint + options.coefficient * np.where(code_mask(table, "role", options.roles), bonus, 0.0)


def own_returns(table: TurnTable) -> Floats:
    """(T,) mean return of the trained episodes through each turn."""
    trained = np.asarray(table["episodes.trained"], bool)[table.step_episode]
    return step_mean(table, np.asarray(table["episodes.return"], np.float64)[table.step_episode], trained)


def verdicts(returns: Floats, right_above: float) -> Floats:
    """1 for right, -1 for wrong."""
    return np.where(returns > right_above, 1.0, -1.0)


def task_mean(table: TurnTable, values: Floats) -> Floats:
    """(T,) mean over the trained episodes of the turn's task, each with one vote."""
    trained = np.asarray(table["trained"], bool)
    owner = group_ids(table["episode"])
    count = np.bincount(owner, trained)[owner]
    votes = np.divide(1.0, count, out=np.zeros(len(table)), where=trained)
    keys = group_ids(table["group"])
    return group_mean(values, keys, votes)[keys]


def history(table: TurnTable) -> Floats:
    """(T,) the rewards that the schedule has made of the history of both outcomes."""
    if "history_reward" not in table:
        raise CreditError(
            "estimator 'ccpo' with hier.estimator.reward: history needs the column 'history_reward'; set "
            "hier.schedule.name: ccpo_history."
        )
    return np.asarray(table["history_reward"], np.float64)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "ccpo",
        advantage,
        CCPOOptions,
        summary="verdict on the team, with a bonus for roles without whom the others are wrong",
        source="arXiv 2603.21563; bhai114/ccpo two_model_trainer.py::_compute_counterfactual_role_rewards",
        requires=("group", "episode", "role", "trained", "solo_return", "episodes.return", "episodes.trained"),
        confidence="A",
    )
