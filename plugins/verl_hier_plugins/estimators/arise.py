"""ARISE, a second reward for skills that helped (Skylanding/ARISE), docs/methods/arise.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verl_hier.credit import RETURN_COLUMNS, Floats, episode_advantage, episode_sum, episodes_to_turns
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec

VALUES = {(False, 0): 0.0, (False, 1): 1.0, (True, 0): -1.0, (True, 1): 0.5}


@dataclass(frozen=True)
class ARISEOptions:
    """The library itself (cache, reservoir, operations) belongs to the worker."""

    skill_reward: NonNegative = 1.0
    """Reward of an episode that used a skill and was right."""
    right: float = 0.5
    """Least return of an episode that counts as right when the environment does not report success."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: ARISEOptions) -> Floats:
    """(T,) z-score over the task of task reward plus skill reward."""
    return episodes_to_turns(table, episode_advantage(table, scores=episode_rewards(table, options), eps=options.eps))


def episode_rewards(table: TurnTable, options: ARISEOptions) -> Floats:
    """(E,) return, plus the skill reward where a skill was used on the path and the episode was right."""
    returns, success = np.asarray(table["episodes.return"], np.float64), np.asarray(table["episodes.success"], float)
    right = np.where(np.isnan(success), returns >= options.right, success > 0)
    used = episode_sum(table, table["skill_used"]) > 0
    return returns + options.skill_reward * (used & right)


def role_rewards(table: TurnTable, options: ARISEOptions) -> Floats:
    """(T,) the turn's reward, with the skill reward added on the last turn of the episode."""
    reward = np.array(table["reward"], np.float64)
    bonus = episode_rewards(table, options) - np.asarray(table["episodes.return"], np.float64)
    np.add.at(reward, np.asarray(table["episodes.leaf"]), bonus)
    return reward


def skill_value(unaided: Sequence[int], verified: int) -> float:
    """Marginal value of a skill: harmful -1, neutral 0, redundant 0.5, critical 1.

    Args:
        unaided: outcomes (0 or 1) of the group without the skill.
        verified: outcome of the rollout with it.
    """
    return VALUES[any(unaided), int(verified)]


def utility(old: float, value: float, beta: float = 0.9) -> float:
    """Running utility of a skill after one more marginal value."""
    return beta * old + (1.0 - beta) * value


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "arise",
        advantage,
        ARISEOptions,
        summary="task reward plus a reward for skills that helped, z-scored over the task",
        source="Skylanding/ARISE verl/workers/arise/reward.py",
        requires=("skill_used", "episodes.success", *RETURN_COLUMNS),
        confidence="A",
    )


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `arise_reward` where the table has what it takes, for any estimator to score by."""
    if "skill_used" in table:
        table.turns["arise_reward"] = role_rewards(table, ARISEOptions())
