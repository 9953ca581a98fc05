"""Chain-of-Agents, GRPO on tagged sequences (arXiv 2508.13167), docs/methods/chain_of_agents.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import RETURN_COLUMNS, Credit, episode_advantage, episodes_to_turns, group_ids, group_mean
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class ChainOfAgentsOptions:
    """Defaults are the web and code agents'."""

    filter_groups: bool = True
    """Whether tasks whose episodes all have one return are left out of the loss."""
    mask: str = ""
    """Boolean token column that limits the credit to the tags of some agents; empty credits all action tokens."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: ChainOfAgentsOptions) -> Credit:
    """Credit per turn, or per token with a mask: the z-score of the episode; flat tasks get no weight."""
    episode = episode_advantage(table, eps=options.eps)
    values = episodes_to_turns(table, episode)
    weight = varied(table)[np.asarray(table["episode"])] if options.filter_groups else None
    if not options.mask:
        return Credit(values, weight=weight)
    turn, mask = np.asarray(table["tokens.turn"]), np.asarray(table[f"tokens.{options.mask}"], bool)
    return Credit(np.where(mask, values[turn], 0.0), per="token", weight=weight)


def varied(table: TurnTable) -> np.ndarray:
    """(E,) 1 where the trained episodes of the task differ in return, else 0."""
    keys = group_ids(table["episodes.group"])
    trained, returns = np.asarray(table["episodes.trained"], bool), np.asarray(table["episodes.return"], np.float64)
    mean = group_mean(returns, keys, trained)[keys]
    spread = np.bincount(keys, trained * np.abs(returns - mean))[keys]
    return (spread > 1e-9 * (1.0 + np.abs(mean))).astype(np.float64)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "chain_of_agents",
        advantage,
        ChainOfAgentsOptions,
        summary="GRPO with flat tasks filtered and credit on the tags of chosen agents",
        source="arXiv 2508.13167; OPPO Agent_Foundation_Models",
        requires=("episode", *RETURN_COLUMNS),
        confidence="A",
    )
