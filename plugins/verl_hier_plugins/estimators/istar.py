"""iStar, also called OPRL: implicit step rewards beside the outcome (arXiv 2509.19199), docs/methods/istar.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Credit, Floats, Ints, format_penalty, group_ids, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class IStarOptions:
    """Defaults are those of the released script; `combine` and `statistics` are the released code's."""

    combine: Literal["rloo", "grpo", "reinforce", "sum_first"] = "rloo"
    """How the two levels are compared within the task: rloo, against the mean of the other episodes; grpo, minus the
    mean; reinforce, minus the mean, each level then whitened over the tokens of the batch; sum_first, the levels are
    added and then compared as by rloo."""
    step_weight: NonNegative = 1.0
    """Weight of the step rewards."""
    norm_by_std: bool = False
    """Whether `grpo` divides by the sample standard deviation."""
    only_steps: bool = False
    """Leaves the outcome out."""
    statistics: Literal["first_turn", "turn"] = "first_turn"
    """Which turns the statistics of both levels are over: the first one of each episode, as the released code counts,
    or all of them."""
    format_penalty: NonNegative = 0.0
    """Taken from the outcome of turns whose format is wrong (`format` is 0, or not `valid` where no worker fills that
    column), and of no other turn."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: IStarOptions) -> Credit:
    """Credit per turn: the outcome's advantage plus that of the turn's own step reward."""
    step = np.asarray(table["step_reward"], np.float64)
    outcome = np.zeros(len(table))
    if not options.only_steps:
        outcome = np.asarray(table["return"], np.float64) - format_penalty(table, options.format_penalty)
    if options.combine == "sum_first":
        return Credit(trained_only(table, compared(table, outcome + options.step_weight * step, options)))
    levels = [compared(table, values, options) for values in (outcome, step)]
    return Credit(trained_only(table, levels[0] + options.step_weight * levels[1]))


def compared(table: TurnTable, values: Floats, options: IStarOptions) -> Floats:
    """(T,) the values of the turns against those of their task; a task of one episode keeps them as they are."""
    keys: Ints = group_ids(table["group"])
    votes = electorate(table, options)
    count = np.bincount(keys, votes)
    mean = np.bincount(keys, votes * values) / np.maximum(count, 1.0)
    several = (count > 1)[keys]
    centred = values - np.where(several, mean[keys], 0.0)
    if options.combine in ("rloo", "sum_first"):
        return centred * np.where(several, count[keys] / np.maximum(count[keys] - 1.0, 1.0), 1.0)
    if options.combine == "reinforce":
        return _whitened(table, centred)
    if not options.norm_by_std:
        return centred
    square = np.bincount(keys, votes * centred**2)
    spread = np.where(count > 1, np.sqrt(square / np.maximum(count - 1.0, 1.0)), 1.0)
    return centred / (spread[keys] + options.eps)


def electorate(table: TurnTable, options: IStarOptions) -> Floats:
    """(T,) 1 for the turns that the statistics are over."""
    trained = np.asarray(table["trained"], bool)
    if options.statistics == "turn":
        return trained.astype(np.float64)
    found = np.zeros(len(table))
    chosen = np.flatnonzero(trained[table.step_turn])
    first = np.unique(table.step_episode[chosen], return_index=True)[1]
    found[table.step_turn[chosen[first]]] = 1.0
    return found


def _whitened(table: TurnTable, values: Floats) -> Floats:
    """(T,) the values minus their mean over trained tokens, divided by their deviation over them."""
    tokens = np.asarray(table["n_tokens"], np.float64) * np.asarray(table["trained"], bool)
    count = max(tokens.sum(), 1.0)
    centred = values - (tokens * values).sum() / count
    return np.asarray(centred / np.sqrt((tokens * centred**2).sum() / max(count - 1.0, 1.0) + 1e-8))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "istar",
        advantage,
        IStarOptions,
        summary="outcome of the episode, plus the reward that a second trained model gives each turn",
        source="arXiv 2509.19199; Tongyi-ConvAI/Qwen-Character CharacterRL-iStar/istar/core_istar.py",
        requires=("group", "return", "step_reward", "trained"),
        confidence="A",
    )
