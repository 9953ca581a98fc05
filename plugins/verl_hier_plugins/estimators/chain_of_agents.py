"""Chain-of-Agents, GRPO on tagged sequences (arXiv 2508.13167), docs/methods/chain_of_agents.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import RETURN_COLUMNS, Credit, episode_advantage, episodes_to_turns
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class ChainOfAgentsOptions:
    """The z-score of verl's GRPO; tasks without a signal are replaced by the rollout (`hier.refill`)."""

    mask: str = ""
    """Boolean token column that limits the credit to the tags of some agents; empty credits all action tokens."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: ChainOfAgentsOptions) -> Credit:
    """Credit per turn, or per token with a mask: the z-score of the episode, 0 where the episodes of a task agree."""
    values = episodes_to_turns(table, episode_advantage(table, eps=options.eps))
    if not options.mask:
        return Credit(values)
    turn, mask = np.asarray(table["tokens.turn"]), np.asarray(table[f"tokens.{options.mask}"], bool)
    return Credit(np.where(mask, values[turn], 0.0), per="token")


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "chain_of_agents",
        advantage,
        ChainOfAgentsOptions,
        summary="GRPO with credit on the tags of chosen agents",
        source="arXiv 2508.13167; OPPO Agent_Foundation_Models",
        requires=RETURN_COLUMNS,
        confidence="A",
    )
