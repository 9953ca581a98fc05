"""MC-GRPO, groups centred at the median (MC-GRPO repository), docs/methods/mc_grpo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Credit,
    ZeroVariance,
    episode_advantage,
    episodes_to_turns,
    group_ids,
    group_median,
    group_sum,
    step_mean,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MCGRPOOptions:
    """Defaults are the paper's, but for groups whose deviation vanishes."""

    eps: NonNegative = 1e-3
    """Added to the median absolute deviation."""
    no_deviation: ZeroVariance = "std"
    """A group whose median absolute deviation is below eps, as most groups of binary rewards: mean and standard
    deviation (`std`), no credit (`zero`), or division by eps alone (`divide`, released: credits of 1000 and more)."""
    compensate: bool = True
    """Multiply by episodes / episodes with credit, so that rows without credit do not dilute the group."""
    drop_pivot: bool = True
    """Leave the median episode out of the loss: one of G + 1 is drawn to be the baseline."""


def advantage(table: TurnTable, options: MCGRPOOptions) -> Credit:
    """Credit per turn: returns centred at the group's lower median and scaled by its absolute deviation."""
    values = episode_advantage(
        table, centre="median", scale="mad", eps=options.eps, zero_variance=options.no_deviation, singleton="zero"
    )
    trained = np.asarray(table["episodes.trained"], bool)
    keys = group_ids(table["episodes.group"])
    if options.compensate:
        counted, credited = group_sum(trained, keys), group_sum(values != 0, keys)
        values = values * np.divide(counted, credited, out=np.ones_like(counted), where=credited > 0)[keys]
    kept = trained.astype(np.float64)
    if options.drop_pivot and trained.any():
        kept[pivots(table, keys, trained)] = 0.0
    weight = step_mean(table, kept[table.step_episode])
    return Credit(episodes_to_turns(table, values), weight=weight)


def pivots(table: TurnTable, keys: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """The episode of each group that holds its median (the first of equals); groups of one have nothing to drop."""
    rows = group_median(table["episodes.return"], keys, trained)[1]
    return rows[group_sum(trained, keys) > 1]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "mc_grpo",
        advantage,
        MCGRPOOptions,
        summary="return against the group's median, scaled by its absolute deviation",
        source="MC-GRPO grpo_trainer_gsm.py::_generate_and_score_completions",
        requires=RETURN_COLUMNS,
        weighs=lambda options: "name: mc_grpo",
        confidence="A",
    )
