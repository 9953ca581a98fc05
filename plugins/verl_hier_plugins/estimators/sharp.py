"""SHARP, what an episode loses without the messages of a role (arXiv 2602.08335), docs/methods/sharp.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, Scale, group_ids, optional, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.ccpo import own_returns


@dataclass(frozen=True)
class SHARPOptions:
    """The paper's weights are not known to us; these are our choice."""

    marginal: NonNegative = 0.5
    """Factor of what the episode loses when the messages of the turn's role are masked."""
    calls: NonNegative = 0.1
    """Factor of the share of the agent's calls that were valid."""
    norm_by_std: bool = True
    """Whether advantages are divided by the sample standard deviation."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: SHARPOptions) -> Floats:
    """(T,) reward of the turn's agent in its episode, among the episodes of the task with such an agent."""
    scale: Scale = "sample" if options.norm_by_std else "none"
    return turn_advantage(
        table,
        rewards(table, options),
        ("group", "agent"),
        weight_by="episode",
        scale=scale,
        eps=options.eps,
        singleton="zero",
    )


def rewards(table: TurnTable, options: SHARPOptions) -> Floats:
    """(T,) return, contribution and valid calls of the agent that takes each turn."""
    joint = own_returns(table)
    contribution = joint - np.asarray(table["masked_return"], np.float64)
    return joint + options.marginal * contribution + options.calls * valid_calls(table)


def valid_calls(table: TurnTable) -> Floats:
    """(T,) share of the turns of its agent in its episode that acted and were understood; 0 for an agent that never
    acts. Without the column `access_calls` every turn counts as an action."""
    acts = np.nan_to_num(np.asarray(optional(table, "access_calls", np.ones(len(table))), np.float64)) > 0
    keys = group_ids(table["episode"], table["agent"])
    called, sound = np.bincount(keys, acts), np.bincount(keys, acts & np.asarray(table["valid"], bool))
    share: Floats = np.divide(sound, called, out=np.zeros(len(called)), where=called > 0)
    return share[keys]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "sharp",
        advantage,
        SHARPOptions,
        summary="return, what it loses without the agent's messages, and the agent's valid calls, per agent",
        source="arXiv 2602.08335 (reading notes)",
        requires=(
            "group",
            "episode",
            "agent",
            "valid",
            "trained",
            "masked_return",
            "episodes.return",
            "episodes.trained",
        ),
        confidence="B",
    )
