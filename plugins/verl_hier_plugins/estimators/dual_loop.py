"""Dual loop of CVE2PoC, credit for plans and tries (abstract), docs/methods/dual_loop.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    Bools,
    Floats,
    Normalisation,
    Scale,
    chain_links,
    discounted_sum,
    group_ids,
    group_sum,
    step_mean,
    turn_advantage,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class DualLoopCreditOptions:
    """Levels are never summed: a turn is a plan or a try."""

    gamma: ZeroToOne = 0.95
    """Discount from one try to the next under the same plan."""
    compare_lone_tries: bool = True
    """Whether a try that is alone under its plan is compared with all tries of the task; else it has no credit."""
    scale: Scale = "sample"
    """Scale of both levels."""
    eps: NonNegative = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: DualLoopCreditOptions) -> Floats:
    """(T,) plans (level 0) by the reward of all turns under them, tries by their discounted reward-to-go in it."""
    kernel: Normalisation = {"scale": options.scale, "singleton": "zero", "eps": options.eps}
    strategic = np.asarray(table["level"]) == 0
    plans = turn_advantage(table, plan_scores(table), ("group",), where=strategic, **kernel)
    gains = tactical_returns(table, options.gamma)
    tries = turn_advantage(table, gains, ("group", "plan"), where=~strategic, **kernel)
    if options.compare_lone_tries:
        over_task = turn_advantage(table, gains, ("group",), where=~strategic, **kernel)
        tries = np.where(alone(table, ~strategic), over_task, tries)
    return np.where(strategic, plans, tries)


def plan_scores(table: TurnTable) -> Floats:
    """(T,) a plan's own reward and those of the turns under it; 0 for other turns."""
    reward, plan = np.asarray(table["reward"], np.float64), np.asarray(table["plan"], np.int64)
    below = plan >= 0
    under = np.bincount(plan[below], reward[below], len(table))
    return np.where(np.asarray(table["level"]) == 0, reward + under, 0.0)


def tactical_returns(table: TurnTable, gamma: float) -> Floats:
    """(T,) discounted reward-to-go inside a plan, averaged over the episodes through a turn."""
    plan = np.asarray(table["plan"])[table.step_turn]
    links = chain_links(table.step_episode, plan)
    rewards = np.asarray(table["reward"], np.float64)[table.step_turn]
    return step_mean(table, discounted_sum(rewards, links, gamma))


def alone(table: TurnTable, where: Bools) -> Bools:
    """(T,) tries whose plan has no other trained try to compare them with."""
    keys = group_ids(table["group"], table["plan"])
    trained = np.asarray(table["trained"], bool) & where
    return where & (group_sum(trained.astype(np.float64), keys)[keys] < 2)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "dual_loop",
        advantage,
        DualLoopCreditOptions,
        summary="plans against the plans of the task, tries against the tries under their plan",
        source="CVE2PoC (abstract)",
        requires=("group", "plan", "level", "reward", "trained"),
        confidence="C",
    )
