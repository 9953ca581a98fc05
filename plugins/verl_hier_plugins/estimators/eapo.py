"""EAPO of IterResearch (arXiv 2511.07327), docs/methods/iterresearch.md.

The abstract names the geometric discount; the group and the number are recalled (confidence C).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, Scale, Singleton, discounted_sum, step_links, step_mean, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import AboveZeroToOne, NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class EAPOOptions:
    """Rounds are turns; each has a row of its own where its context begins anew."""

    gamma: AboveZeroToOne = 0.995
    """Discount a round: a round that is k rounds before the last one has the outcome times this to the power of k."""
    scale: Scale = "sample"
    """What is divided by, over all rounds of the task."""
    singleton: Singleton = "raw"
    """A group of one round."""
    eps: NonNegative = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: EAPOOptions) -> Floats:
    """(T,) the discounted outcome of each round against that of all rounds of the task, each with one vote."""
    scores = discounted_outcome(table, options.gamma)
    return turn_advantage(
        table,
        scores,
        ("group",),
        weight_by="turn",
        scale=options.scale,
        singleton=options.singleton,
        eps=options.eps,
    )


def discounted_outcome(table: TurnTable, gamma: float) -> Floats:
    """(T,) the return of the episode, discounted by the rounds that follow; the mean where episodes share a turn."""
    links = step_links(table)
    returns = np.asarray(table["episodes.return"], np.float64)[table.step_episode]
    trained = np.asarray(table["episodes.trained"], bool)[table.step_episode]
    return step_mean(table, discounted_sum(np.where(links, 0.0, returns), links, gamma), trained)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "eapo",
        advantage,
        EAPOOptions,
        summary="the outcome, discounted by the rounds that follow, against all rounds of the task",
        source="IterResearch, arXiv 2511.07327",
        confidence="C",
        requires=("group", "trained", "episodes.return", "episodes.trained"),
    )
