"""HiMAC, hierarchical relative advantage (arXiv 2603.00977), docs/methods/himac.md.

Read in the abstract and in notes alone: scale, eps and votes are not confirmed and therefore options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Floats,
    Normalisation,
    Scale,
    Singleton,
    WeightBy,
    group_ids,
    step_mean,
    term,
    turn_advantage,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class HiMACOptions:
    """Levels are never summed: every turn belongs to one."""

    micro_group: Literal["plan", "group", "auto"] = "auto"
    """Executions are compared under one blueprint (`plan`, the paper) or over the whole task (`group`); `auto` takes
    the task when every blueprint has one trained execution, where plan groups could teach nothing."""
    weight_by: WeightBy = "episode"
    """Votes among executions: one an episode, however many turns it has."""
    scale: Scale = "sample"
    """Scale of both levels."""
    singleton: Singleton = "zero"
    """A blueprint or execution that has nothing to be compared with."""
    eps: NonNegative = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: HiMACOptions) -> Floats:
    """(T,) blueprint turns (level 0) by the value of the blueprint, the others by the return of their execution."""
    kernel: Normalisation = {"scale": options.scale, "singleton": options.singleton, "eps": options.eps}
    macro = np.asarray(table["level"]) == 0
    columns = ("group", "plan") if micro_group(table, options) == "plan" else ("group",)
    blueprints = turn_advantage(table, plan_scores(table), ("group",), where=macro, **kernel)
    term("blueprint among the blueprints of the task", blueprints)
    executions = turn_advantage(table, table["return"], columns, weight_by=options.weight_by, where=~macro, **kernel)
    term(f"execution among those of the same {columns[-1]}", executions)
    return np.where(macro, blueprints, executions)


def plan_scores(table: TurnTable) -> Floats:
    """(T,) mean return of the evaluation-only episodes through a turn, of all of them where there are none."""
    returns = np.asarray(table["episodes.return"], np.float64)[table.step_episode]
    greedy = ~np.asarray(table["episodes.trained"], bool)[table.step_episode]
    evaluated = np.bincount(table.step_turn, greedy, len(table)) > 0
    return np.where(evaluated, step_mean(table, returns, greedy), step_mean(table, returns))


def micro_group(table: TurnTable, options: HiMACOptions) -> str:
    """`auto` resolved: `group` when no blueprint has two trained executions."""
    if options.micro_group != "auto":
        return options.micro_group
    plan, level = np.asarray(table["plan"])[table.step_turn], np.asarray(table["level"])[table.step_turn]
    trained = np.asarray(table["episodes.trained"], bool)[table.step_episode]
    below = trained & (level > 0)
    pairs = group_ids(plan[below], table.step_episode[below])
    first = np.unique(pairs, return_index=True)[1]
    executions = np.unique(plan[below][first], return_counts=True)[1]
    return "plan" if (executions > 1).any() else "group"


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "himac",
        advantage,
        HiMACOptions,
        summary="blueprints against blueprints of the task, executions against executions of the same blueprint",
        source="arXiv 2603.00977 §3 (reading notes; no public code found)",
        requires=("group", "episode", "level", "plan", "return", "trained", "episodes.return", "episodes.trained"),
        levels=(0, 1),
        confidence="B",
    )
