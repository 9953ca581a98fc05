"""SeeUPO, turns updated one after the other in reverse order (arXiv 2602.06554), docs/methods/seeupo.md.

The reverse order of the updates is the job of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    discounted_sum,
    episode_advantage,
    episodes_to_turns,
    optional,
    shift_back,
    step_links,
    step_mean,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, Positive
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class SeeUPOOptions:
    """The ratio of a turn is exp of its column `log_ratio`; without the column no later turn has been updated."""

    max_weight: Positive = 10.0
    """Bound of the product of ratios, from above and (inverse) below."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: SeeUPOOptions) -> Floats:
    """(T,) the episode's z-score times the product of the ratios of all later turns, which were updated before."""
    values = episodes_to_turns(table, episode_advantage(table, eps=options.eps))
    return values * later_ratios(table, options.max_weight)


def later_ratios(table: TurnTable, bound: float) -> Floats:
    """(T,) product of exp(log_ratio) over the turns after each one, clipped to [1 / bound, bound]."""
    ratio = np.asarray(optional(table, "log_ratio", np.zeros(len(table))), np.float64)[table.step_turn]
    links = step_links(table)
    later = shift_back(discounted_sum(ratio, links, 1.0), links)
    return step_mean(table, np.exp(np.clip(later, -np.log(bound), np.log(bound))))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "seeupo",
        advantage,
        SeeUPOOptions,
        summary="episode z-score times the ratios of the later turns, updated in reverse order",
        source="arXiv 2602.06554 (reading notes)",
        requires=RETURN_COLUMNS,
        confidence="C",
    )
