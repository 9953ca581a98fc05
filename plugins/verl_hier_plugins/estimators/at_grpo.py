"""AT-GRPO, groups by agent and turn (arXiv 2510.11062), docs/methods/at_grpo.md.

GRPO with other keys, and a filter of groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Credit, Floats, WeightBy, turn_advantage, turn_keys
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
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
    drop_lowest: ZeroToOne = 0.0
    """Share of the step's groups that is left out of the loss."""
    drop_by: Literal["mean", "spread"] = "mean"
    """What those groups have least of: the mean of their scores, or their variance over their squared range."""


def advantage(table: TurnTable, options: ATGRPOOptions) -> Credit:
    """Credit per turn: the z-score of the turn's own reward among the candidates of its state; groups that the filter
    drops get the weight 0."""
    credit = _credit(table, options)
    if options.drop_lowest:
        kept = kept_turns(table, options)
        credit.weight = kept if credit.weight is None else credit.weight * kept
    return credit


def _credit(table: TurnTable, options: ATGRPOOptions) -> Credit:
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


def kept_turns(table: TurnTable, options: ATGRPOOptions) -> Floats:
    """(T,) 0 for the turns of the lowest groups, else 1. A group of one counts as 0, of equal groups the first is
    lower."""
    keys, scores = turn_keys(table, options.group_by), np.asarray(grpo.turn_scores(table, options), np.float64)
    trained = np.flatnonzero(np.asarray(table["trained"], bool))
    turns = trained[np.argsort(keys[trained], kind="stable")]
    groups = np.split(turns, np.flatnonzero(np.diff(keys[turns])) + 1)
    groups.sort(key=lambda group: (_rank(scores[group], options.drop_by), *group[:1]))
    kept = np.ones(len(keys))
    for group in groups[: int(len(groups) * options.drop_lowest)]:
        kept[group] = 0.0
    return kept


def _rank(scores: Floats, by: Literal["mean", "spread"]) -> float:
    if len(scores) < 2:
        return 0.0
    if by == "mean":
        return float(scores.mean())
    width = float(np.ptp(scores))
    return float(scores.var()) / width**2 if width else 0.0


def weighs(options: ATGRPOOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    if options.drop_lowest:
        return f"drop_lowest: {options.drop_lowest:g}"
    return "keep: last_turn" if options.keep == "last_turn" else grpo.weighs(options)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "at_grpo",
        advantage,
        ATGRPOOptions,
        summary="own reward of a turn among the candidates of the same turn and agent",
        source="arXiv 2510.11062; PettingLLMs multi_agents_ppo_trainer.py::_assign_consistent_uids",
        requires=("group", "turn", "agent", "reward", "trained"),
        weighs=weighs,
        confidence="A",
    )
