"""SAGE, each question of a chain with a reward for skills that helped (arXiv 2512.17102), docs/methods/sage.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Bools, Floats, group_ids, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class SAGEOptions:
    """Questions are the segments of an episode."""

    used_reward: NonNegative = 1.0
    """Added to a solved question for which a skill of an earlier one was called."""
    made_reward: NonNegative = 1.0
    """Added to a solved question that has left a skill with which a later one was solved."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: SAGEOptions) -> Floats:
    """(T,) z-score of the reward of a turn's question among the episodes of the task, question by question."""
    scores = question_rewards(table, options)
    return turn_advantage(table, scores, ("group", "segment"), weight_by="episode", eps=options.eps)


def question_rewards(table: TurnTable, options: SAGEOptions) -> Floats:
    """(T,) what the question of each turn has earned in its episode: its turns' rewards, and those for skills."""
    question = group_ids(table["episode"], table["segment"])
    reward: Floats = np.asarray(np.bincount(question, table["reward"]), np.float64)
    solved = np.bincount(question, table["question_solved"]) > 0
    for helped, amount in ((table["skill_used"], options.used_reward), (has_helped(table), options.made_reward)):
        reward += amount * (solved & (np.bincount(question, helped) > 0))
    return reward[question]


def has_helped(table: TurnTable) -> Bools:
    """(T,) whether a skill of the turn's question has helped to solve a later one of its episode."""
    episode = group_ids(table["episode"])
    sources = np.asarray(table["skill_sources"], np.int64) * (np.asarray(table["question_solved"]) > 0)
    of_episode = np.zeros(episode.max(initial=-1) + 1, np.int64)
    np.bitwise_or.at(of_episode, episode, sources)
    return (of_episode[episode] >> np.clip(table["segment"], 0, 62)) & 1 > 0


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "sage",
        advantage,
        SAGEOptions,
        summary="each question of a chain against that of the other episodes, with a reward for skills",
        source="arXiv 2512.17102, Skill-integrated Reward",
        requires=(
            *("group", "episode", "segment", "reward", "trained"),
            *("question_solved", "skill_used", "skill_sources"),
        ),
        confidence="C",
    )
