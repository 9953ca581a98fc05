"""Hierarchical GRPO, some agents within their episode and the others across it; docs/methods/hierarchical_grpo.md.

From https://github.com/PrimeIntellect-ai/prime-rl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Floats, Scale, group_ids, group_mean, group_sum, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.ccpo import own_returns


@dataclass(frozen=True)
class HierarchicalGRPOOptions:
    """Defaults are the released code's."""

    within: tuple[str, ...] = ("solver",)
    """Roles whose agents are compared with each other inside their episode; those of all other roles are compared over
    the episodes of the task."""
    score: Literal["own", "return"] = "own"
    """What is compared: the rewards of the agent's own turns in the episode, or the return of the episode."""
    scale: Scale = "none"
    """What the difference to the mean is divided by; `none` only centres."""
    eps: NonNegative = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: HierarchicalGRPOOptions) -> Floats:
    """(T,) score of the turn's agent in its episode minus the mean of those that it is compared with; 0 for one that is
    compared with nobody. An agent of an episode has one vote."""
    agents = group_ids(table["episode"], table["agent"])
    total = options.score == "own"
    scores = group_sum(table["reward"], agents) if total else group_mean(own_returns(table), agents)
    scores = scores[agents]
    inside = np.isin(table["role"], [table.code("role", name) for name in options.within])
    found = np.zeros(len(table))
    for where, columns in ((inside, ("group", "episode", "role")), (~inside, ("group", "role"))):
        found += compared(table, scores, agents, columns, where, options)
    return found


def compared(
    table: TurnTable,
    scores: Floats,
    agents: np.ndarray,
    columns: tuple[str, ...],
    where: np.ndarray,
    options: HierarchicalGRPOOptions,
) -> Floats:
    """(T,) advantages of the agents of some roles, the same for all turns of an agent in an episode; 0 elsewhere."""
    chosen = where & np.asarray(table["trained"], bool)
    turns = np.flatnonzero(chosen)
    first = turns[np.unique(agents[turns], return_index=True)[1]]
    votes = np.zeros(len(table), bool)
    votes[first] = True
    values = turn_advantage(table, scores, columns, where=votes, scale=options.scale, eps=options.eps, singleton="zero")
    spread = np.zeros(int(agents.max(initial=-1)) + 1)
    spread[agents[first]] = values[first]
    return np.where(chosen, spread[agents], 0.0)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "hierarchical_grpo",
        advantage,
        HierarchicalGRPOOptions,
        summary="some roles against each other inside an episode, the others over the episodes of the task",
        source="PrimeIntellect-ai/prime-rl src/prime_rl/orchestrator/algo/hierarchical_grpo.py",
        requires=("group", "episode", "agent", "role", "reward", "trained"),
        confidence="A",
    )
