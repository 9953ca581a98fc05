"""M-GRPO, a main agent and its sub-agents in groups of their own (arXiv 2511.13288), docs/methods/m_grpo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, Scale, trained_only, turn_advantage
from verl_hier.credit.groups import group_ids
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.ccpo import own_returns


@dataclass(frozen=True)
class MGRPOOptions:
    """Defaults are the released code's."""

    sound: NonNegative = 0.1
    """Reward of a wrong answer in the right form, and of a sub-agent in the right form whose episode is wrong."""
    right_above: float = 0.5
    """Return above which an episode counts as right."""
    norm_by_std: bool = True
    """Whether advantages are divided by the sample standard deviation."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: MGRPOOptions) -> Floats:
    """(T,) reward of the turn's agent: the main agents of a task against each other, and its sub-agents.

    Each episode has one vote among the sub-agents of its task, however many it has, as if their number had been
    aligned by repeating and leaving out.
    """
    scale: Scale = "sample" if options.norm_by_std else "none"
    main = np.asarray(table["level"]) == 0
    scores = rewards(table, options)
    found = np.zeros(len(table))
    for where in (main, ~main):
        found += turn_advantage(
            table, scores, ("group",), weight_by="episode", where=where, scale=scale, eps=options.eps, singleton="zero"
        )
    return trained_only(table, found)


def rewards(table: TurnTable, options: MGRPOOptions) -> Floats:
    """(T,) reward of the agent that takes each turn, in its episode.

    A main agent earns 1 for a right answer, `sound` for a wrong one in the right form, else 0. A sub-agent in the
    right form earns 1 where its episode is right, else `sound`; in the wrong form nothing.
    """
    right = own_returns(table) > options.right_above
    agents = group_ids(table["episode"], table["agent"])
    wrong = np.bincount(agents, np.asarray(table["format"], np.float64) == 0)[agents] > 0
    main = np.asarray(table["level"]) == 0
    formed = np.where(wrong, 0.0, options.sound)
    return np.where(right & (main | ~wrong), 1.0, formed)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "m_grpo",
        advantage,
        MGRPOOptions,
        summary="main agents against main agents of the task, its sub-agents against sub-agents",
        source="arXiv 2511.13288; AQ-MedAI/MrlX MrlX-DeepResearch",
        requires=(
            "group",
            "episode",
            "agent",
            "level",
            "format",
            "trained",
            "episodes.return",
            "episodes.trained",
        ),
        confidence="C",
    )
