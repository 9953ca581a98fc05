"""MATPO, a planner and workers of one model (arXiv 2510.04678), docs/methods/matpo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, episode_advantage, episode_sum, episodes_to_turns, group_ids
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MATPOOptions:
    """Planners are the agents of level 0, all others are workers; one agent has one conversation."""

    accuracy_weight: NonNegative = 0.9
    """Of the return of the episode."""
    format_weight: NonNegative = 0.1
    """Of the two format terms, the planner's and the mean of the workers', each of which counts half."""
    gate: bool = False
    """Whether formats count only in episodes whose return is at least 1."""
    norm_by_std: bool = True
    """Whether the z-score divides by the sample standard deviation."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: MATPOOptions) -> Floats:
    """(T,) the z-score of the episode's reward among the episodes of the task, for planner and workers alike."""
    scores, scaled = episode_rewards(table, options), options.norm_by_std
    values = episode_advantage(table, scores=scores, scale="sample" if scaled else "none", eps=options.eps)
    return episodes_to_turns(table, values)


def episode_rewards(table: TurnTable, options: MATPOOptions) -> Floats:
    """(E,) return and formats. The format of an agent is the mean of the turn column `format` over its turns."""
    form, planner = np.asarray(table["format"], np.float64), np.asarray(table["level"]) == 0
    agent = group_ids(table["episode"], table["agent"])
    share = 1.0 / np.bincount(agent)[agent]

    def mean_of(chosen: np.ndarray) -> Floats:
        agents, total = episode_sum(table, chosen * share), episode_sum(table, chosen * share * form)
        return np.divide(total, agents, out=np.zeros_like(total), where=agents > 0)

    right = np.asarray(table["episodes.return"], np.float64)
    formats = 0.5 * options.format_weight * (mean_of(planner) + mean_of(~planner))
    return options.accuracy_weight * right + np.where(right >= 1.0, 1.0, 0.0 if options.gate else 1.0) * formats


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "matpo",
        advantage,
        MATPOOptions,
        summary="accuracy and formats of a planner and its workers, z-scored over the episodes of the task",
        source="arXiv 2510.04678; mzf666/MATPO verl/workers/reward_manager/subagent_tool.py",
        requires=(
            "episode",
            "agent",
            "level",
            "format",
            "trained",
            "episodes.group",
            "episodes.return",
            "episodes.trained",
        ),
        levels=(0, 1),
        confidence="A",
    )
