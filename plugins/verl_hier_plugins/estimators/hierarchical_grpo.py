"""Hierarchical GRPO: roles compared inside their episode, or over the task; docs/methods/hierarchical_grpo.md.

Source: prime-rl, `algo/hierarchical_grpo.py`, for a proposer whose questions have several answers each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, group_ids, group_mean, optional, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class HierarchicalGRPOOptions:
    """Options of `hierarchical_grpo`."""

    episode_agents: tuple[str, ...] = ("solver",)
    """Roles whose agents are compared inside their episode: they have the same question there."""


def advantage(table: TurnTable, options: HierarchicalGRPOOptions) -> Floats:
    """(T,) what an agent has earned in its episode, minus the mean of those that it is compared with; 0 for one alone.

    An agent counts once, however many turns it has taken, and only with turns that are trained. Other roles than
    `episode_agents` are compared over the task, each with its own kind. The column `fresh` of a pool of questions,
    where there is one, takes away what a question has earned that the pool knows.
    """
    trained = np.asarray(table["trained"], bool)
    reward = np.asarray(table["reward"], np.float64) * optional(table, "fresh", 1.0)
    trace = group_ids(table["episode"], table["agent"])
    first = np.unique(trace, return_index=True)[1]
    earned = np.bincount(trace, np.where(trained, reward, 0.0))
    counts = np.bincount(trace, trained) > 0
    inside = np.isin(table["role"], [table.code("role", role) for role in options.episode_agents])[first]
    among = np.where(inside, np.asarray(table["episode"])[first], np.asarray(table["group"])[first])
    keys = group_ids(inside, among, np.asarray(table["role"])[first])
    mean = group_mean(earned, keys, counts.astype(np.float64))
    values = np.where(counts, earned - mean[keys], 0.0)
    return trained_only(table, values[trace])


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "hierarchical_grpo",
        advantage,
        HierarchicalGRPOOptions,
        summary="solvers minus the mean of their question, proposers minus the mean of their task; no deviation",
        source="PrimeIntellect-ai/prime-rl src/prime_rl/orchestrator/algo/hierarchical_grpo.py",
        requires=("group", "episode", "agent", "role", "reward", "trained"),
        reads=("fresh",),
        own_rewards=True,
        named_roles=lambda options: options.episode_agents,
        confidence="A",
    )
