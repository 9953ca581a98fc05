"""RAE, returns against a running mean for each role (SPIRAL, arXiv 2506.24119), docs/methods/rae.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, group_ids, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import AboveZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class RAEOptions:
    """Defaults are the released code's. The running means belong to the schedule `rae`."""

    gamma: AboveZeroToOne = 1.0
    """Discount for each turn of the same role between a turn and the end of its episode."""
    drop_zero: bool = True
    """Leave turns out of the loss whose credit is exactly 0."""
    mask_cut: bool = True
    """Leave turns out of the loss that their limit of tokens has cut."""


def advantage(table: TurnTable, options: RAEOptions) -> Credit:
    """Credit per turn: return of the role in the episode minus the mean of such returns before it."""
    credit = np.asarray(table["own_return"], np.float64) - np.asarray(table["baseline"], np.float64)
    if options.gamma != 1:
        credit = credit * options.gamma ** turns_left(table)
    credit = trained_only(table, credit)
    kept = np.ones(len(table), bool)
    if options.drop_zero:
        kept &= credit != 0
    if options.mask_cut:
        kept &= np.asarray(table["complete"], bool)
    return Credit(credit, weight=kept.astype(np.float64))


def turns_left(table: TurnTable) -> np.ndarray:
    """(T,) turns of the same role that follow in the episode that made the turn."""
    keys, turn = group_ids(table["episode"], table["role"]), np.asarray(table["turn"])
    order = np.lexsort((-turn, keys))
    count = np.bincount(keys)
    left = np.empty(len(keys), np.int64)
    left[order] = np.arange(len(keys)) - np.repeat(np.cumsum(count) - count, count)
    return left


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "rae",
        advantage,
        RAEOptions,
        summary="return minus a running mean of the role's returns, which crosses steps; no group",
        source="arXiv 2506.24119; spiral-rl/spiral train_spiral.py",
        requires=("own_return", "baseline", "complete", "trained"),
        needs_groups=False,
        weighs=lambda options: "name: rae",
        confidence="A",
    )
