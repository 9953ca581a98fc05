"""Dr. MAS, normalisation by agent (arXiv 2602.08847), docs/methods/dr_mas.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Floats,
    Normalisation,
    WeightBy,
    episode_advantage,
    episode_sum,
    episodes_to_turns,
    group_advantage,
    group_ids,
    trained_only,
    turn_advantage,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class DrMASOptions:
    """Defaults are the released code's."""

    agent_wise: bool = True
    """Whether every agent has its own statistics; off: one score an episode, the mean over its
    turns (grpo) or its first turn's (rloo)."""
    baseline: Literal["grpo", "rloo"] = "grpo"
    """z-score, or the mean of the others without a scale."""
    norm_by_std: bool = True
    """Whether the z-score divides by the sample standard deviation."""
    weight_by: WeightBy = "turn"
    """Votes among the turns of an agent: the released code counts rows."""
    invalid_penalty: NonNegative = 0.1
    """Taken from the score of a turn whose action was not understood; set 0 when the environment does it."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: DrMASOptions) -> Floats:
    """(T,) the team's return (less the turn's own penalty) among the turns of the task by the same agent."""
    scores = np.asarray(table["return"], np.float64) - options.invalid_penalty * ~np.asarray(table["valid"], bool)
    scaled = options.norm_by_std and options.baseline == "grpo"
    kernel: Normalisation = {
        "centre": "mean" if options.baseline == "grpo" else "leave_one_out",
        "scale": "sample" if scaled else "none",
        "eps": options.eps,
    }
    if options.agent_wise:
        return turn_advantage(table, scores, ("group", "agent"), weight_by=options.weight_by, **kernel)
    if options.baseline == "rloo":
        keys = group_ids(table["group"])
        return trained_only(table, group_advantage(scores, keys, weights=first_turns(table), **kernel))
    trained = np.asarray(table["trained"], np.float64)
    count, total = episode_sum(table, trained), episode_sum(table, trained * scores)
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return episodes_to_turns(table, episode_advantage(table, scores=mean, **kernel))


def first_turns(table: TurnTable) -> Floats:
    """(T,) 1 for the first trained turn of every episode: the one score an episode that the released RLOO counts."""
    steps = np.flatnonzero(np.asarray(table["trained"], bool)[table.step_turn])
    first = np.unique(table.step_episode[steps], return_index=True)[1]
    votes = np.zeros(len(table))
    votes[table.step_turn[steps[first]]] = 1.0
    return votes


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "dr_mas",
        advantage,
        DrMASOptions,
        summary="team return among the turns of the task by the same agent",
        source="arXiv 2602.08847; langfengQ/DrMAS core_algos.py",
        requires=("group", "agent", "return", "valid", "trained"),
        confidence="A",
    )
