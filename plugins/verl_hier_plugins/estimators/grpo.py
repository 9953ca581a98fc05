"""GRPO, group relative policy optimisation (arXiv 2402.03300), docs/methods/grpo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Centre,
    Credit,
    Floats,
    Normalisation,
    Scale,
    Shared,
    Singleton,
    WeightBy,
    ZeroVariance,
    drop_weights,
    episode_advantage,
    episode_votes,
    format_penalty,
    group_ids,
    owner_weighs,
    share,
    singletons,
    step_mean,
    turn_advantage,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class GRPOOptions:
    """Defaults are verl's GRPO; the other values are the group baselines that later papers use."""

    score: str = "return"
    """What is compared: `return` of the episode, or a turn column such as `reward` or `cory_reward`."""
    group_by: tuple[str, ...] = ("group",)
    """Columns that make a group. With turn columns (`agent`, `role`, `turn`…) turns are compared with turns."""
    weight_by: WeightBy = "episode"
    """What has one vote in the statistics of the group."""
    centre: Centre = "mean"
    """What is subtracted."""
    scale: Scale = "sample"
    """What is divided by; `none` is the Dr. GRPO form."""
    eps: NonNegative = 1e-6
    """Added to the scale."""
    singleton: Singleton = "raw"
    """A group of one keeps its raw score (verl), gets 0, or is left out of the loss."""
    zero_variance: ZeroVariance = "zero"
    """A group without spread; only `mad` scales can have one that is not trivially 0."""
    shared: Shared = "average"
    """What a turn gets that several episodes share."""
    format_penalty: NonNegative = 0.0
    """Taken from the score of turns whose format is wrong (`format` is 0, or not `valid` where no worker fills that
    column), and of no other turn. Above 0, turns are compared with turns, each by the return of its episodes."""


def advantage(table: TurnTable, options: GRPOOptions) -> Credit:
    """Credit per turn (per step with `shared: repeat`): the z-score of the score in its group."""
    kernel = normalisation(options)
    if options.score != "return" or options.format_penalty or not set(options.group_by) <= {"group", "tree"}:
        scores = turn_scores(table, options)
        values = turn_advantage(table, scores, options.group_by, weight_by=options.weight_by, **kernel)
        kept = drop_weights(table, options.group_by, options.weight_by) if options.singleton == "drop" else None
        return Credit(values, weight=kept)
    values = episode_advantage(table, group_by=options.group_by, weight_by=options.weight_by, **kernel)
    credit = share(table, values[table.step_episode], options.shared)
    if options.singleton == "drop":
        kept = step_mean(table, compared(table, options)[table.step_episode])
        credit.weight = kept if credit.weight is None else credit.weight * kept
    return credit


def normalisation(options: GRPOOptions) -> Normalisation:
    """The arguments of the group kernel."""
    return {
        "centre": options.centre,
        "scale": options.scale,
        "eps": options.eps,
        "singleton": options.singleton,
        "zero_variance": options.zero_variance,
    }


def turn_scores(table: TurnTable, options: GRPOOptions) -> Floats:
    """(T,) the score of each turn by itself, less the penalty for a wrong format."""
    return np.asarray(table[options.score], np.float64) - format_penalty(table, options.format_penalty)


def compared(table: TurnTable, options: GRPOOptions) -> Floats:
    """(E,) 1 for episodes whose group has another vote, else 0."""
    keys = group_ids(*(table[f"episodes.{name}"] for name in options.group_by))
    votes, trained = episode_votes(table, options.weight_by), np.asarray(table["episodes.trained"], bool)
    return (~singletons(keys, votes, trained)).astype(np.float64)


def weighs(options: GRPOOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    if options.singleton == "drop":
        return "singleton: drop"
    return owner_weighs(options.shared)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "grpo",
        advantage,
        GRPOOptions,
        summary="return against the other episodes of the task, z-scored",
        source="arXiv 2402.03300 §4.1; verl compute_grpo_outcome_advantage",
        requires=RETURN_COLUMNS,
        weighs=weighs,
        confidence="A",
    )
