"""AT-GRPO, groups by agent and turn (arXiv 2510.11062), docs/methods/at_grpo.md.

GRPO with other keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Credit, WeightBy, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators import grpo

__all__ = ["ATGRPOOptions", "advantage"]


@dataclass(frozen=True)
class ATGRPOOptions(grpo.GRPOOptions):
    """GRPO's options; candidates of one state are compared by the reward of their own turn."""

    score: str = "reward"
    """The turn's own reward: alpha * team + local."""
    group_by: tuple[str, ...] = ("group", "turn", "agent")
    """Candidates that were sampled from one state."""
    weight_by: WeightBy = "turn"
    """Every candidate has one vote."""
    keep: Literal["all", "last_turn"] = "all"
    """`last_turn` compares and trains the turns of the last turn number of each episode alone; with `group_by:
    [episode]` it is the mode `no_tree` of the released code."""


def advantage(table: TurnTable, options: ATGRPOOptions) -> Credit:
    """Credit per turn: the z-score of the turn's own reward among the candidates of its state."""
    if options.keep == "all":
        return grpo.advantage(table, options)
    number, episode = np.asarray(table["turn"]), np.asarray(table["episode"])
    last = np.zeros(int(episode.max(initial=-1)) + 1, number.dtype)
    np.maximum.at(last, episode, number)
    kept = number == last[episode]
    scores = grpo.turn_scores(table, options)
    kernel = grpo.normalisation(options)
    values = turn_advantage(table, scores, options.group_by, weight_by=options.weight_by, where=kept, **kernel)
    return Credit(values, weight=kept.astype(np.float64))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "at_grpo",
        advantage,
        ATGRPOOptions,
        summary="own reward of a turn among the candidates of the same turn and agent",
        source="arXiv 2510.11062; PettingLLMs multi_agents_ppo_trainer.py::_assign_consistent_uids",
        requires=("group", "turn", "agent", "reward", "trained"),
        confidence="A",
    )
