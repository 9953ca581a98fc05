"""Values in place of zeros, after VSPO and its staged rewards (arXiv 2512.07478), docs/methods/vspo.md.

GRPO's kernel, twice: where the returns of a task have no spread, its attempts are compared by the first stage that has
one; and what no stage tells apart gives its place in the loss to tasks that are worth more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Bools,
    Credit,
    Floats,
    Ints,
    Shared,
    episode_advantage,
    equal_scores,
    group_ids,
    group_mean,
    group_sum,
    owner_weighs,
    share,
    step_mean,
)
from verl_hier.credit.explain import term
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import AtLeastOne, NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class VSPOOptions:
    """What of the paper is known are its abstract and the abstracts of its reviews; the numbers are ours."""

    stages: tuple[str, ...] = ("valid", "complete")
    """Turn columns, the most basic one first. A task whose attempts all have one return compares them by their mean of
    the first of these columns in which they differ; without any, such a task gets 0, as in GRPO."""
    stage_weight: NonNegative = 0.5
    """What such an advantage is multiplied by, so that a stage never counts as much as the return."""
    most: AtLeastOne = 2.0
    """How often a task counts at most in the loss in place of tasks without any advantage; 1 leaves all tasks as they
    are."""
    eps: NonNegative = 1e-6
    """Added to the scale."""
    shared: Shared = "average"
    """What a turn gets that several episodes share."""


def advantage(table: TurnTable, options: VSPOOptions) -> Credit:
    """Credit per turn (per step with `shared: repeat`): the z-score of the return, or of a stage, in the task."""
    keys = group_ids(table["episodes.group"])
    values, silent = staged(table, keys, options)
    term("return, or the first stage that spreads", values, "episode")
    credit = share(table, values[table.step_episode], options.shared)
    if options.most > 1:
        weight = step_mean(table, places(table, keys, silent, options.most)[keys][table.step_episode])
        credit.weight = weight if credit.weight is None else credit.weight * weight
    return credit


def staged(table: TurnTable, keys: Ints, options: VSPOOptions) -> tuple[Floats, Bools]:
    """(E,) advantages, and (G,) which tasks have none, because neither the return nor a stage tells attempts apart."""
    values = episode_advantage(table, eps=options.eps, singleton="zero")
    silent = without_spread(table, keys, np.asarray(table["episodes.return"], np.float64))
    for name in options.stages:
        if not silent.any():
            break
        scores = stage(table, name)
        found = episode_advantage(table, scores=scores, eps=options.eps, singleton="zero")
        values = np.where(silent[keys], options.stage_weight * found, values)
        silent = silent & without_spread(table, keys, scores)
    return values, silent


def stage(table: TurnTable, name: str) -> Floats:
    """(E,) the mean of a turn column over the turns of each episode."""
    column = np.asarray(table[name], np.float64)[table.step_turn]
    count = np.bincount(table.step_episode, minlength=len(table.episodes["return"]))
    total = np.bincount(table.step_episode, np.nan_to_num(column), len(count))
    return total / np.maximum(count, 1)


def without_spread(table: TurnTable, keys: Ints, scores: Floats) -> Bools:
    """(G,) tasks whose trained episodes all have one score, or of which fewer than two are trained."""
    trained = np.asarray(table["episodes.trained"], bool)
    alone = np.arange(len(keys)) + keys.max(initial=-1) + 1
    size = int(keys.max(initial=-1)) + 1
    several = np.bincount(keys, trained, size) > 1
    equal = equal_scores(scores, np.where(trained, keys, alone))[:size]
    return np.asarray(equal | ~several)


def places(table: TurnTable, keys: Ints, silent: Bools, most: float) -> Floats:
    """(G,) how often each task counts in the loss.

    A task without any advantage counts 0 times, and its place goes to those whose returns spread, in proportion to
    their worth: how difficult the task is times how uncertain, (1 - mean) * deviation of its returns on a scale from 0,
    the lowest return of the batch, to 1, the highest. None counts more often than `most`.
    """
    returns = np.asarray(table["episodes.return"], np.float64)
    trained = np.asarray(table["episodes.trained"], np.float64)
    known = returns[trained > 0]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    scaled = (returns - low) / (high - low) if high > low else np.zeros_like(returns)
    mean = group_mean(scaled, keys, trained)
    spread = np.sqrt(group_mean((scaled - mean[keys]) ** 2, keys, trained))
    worth = np.where(silent, 0.0, (1.0 - mean) * spread)
    there = group_sum(trained, keys) > 0
    found = np.where(silent, 0.0, 1.0)
    if worth.sum() > 0:
        found = np.where(silent, 0.0, np.minimum(most, 1.0 + (silent & there).sum() * worth / worth.sum()))
    return found if (found > 0).any() else np.ones_like(found)


def weighs(options: VSPOOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    if options.most > 1:
        return "most"
    return owner_weighs(options.shared)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "vspo",
        advantage,
        VSPOOptions,
        summary="GRPO, with stages and the places of other tasks where a task's returns are all the same",
        source="arXiv 2512.07478, abstract",
        requires=RETURN_COLUMNS,
        weighs=weighs,
        confidence="C",
    )
