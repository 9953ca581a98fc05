"""HiPER's reward shaping before the advantages (released code), docs/estimators/hiper.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import optional
from verl_hier.trajectory.table import TurnTable

Floats = NDArray[np.float64]


def kept(table: TurnTable) -> NDArray[np.bool_]:
    """(T,) turns that keep their subgoal: by the column `switch`, or not the first turn of their segment."""
    switch = optional(table, "switch")
    if switch is not None:
        return ~np.asarray(switch, bool)
    parent, segment = np.asarray(table["parent"]), np.asarray(table["segment"])
    return (parent >= 0) & (segment == segment[np.maximum(parent, 0)])


def shaped_rewards(table: TurnTable, options: Any) -> Floats:
    """(T,) rewards with the keep, invalid-action and consistency penalties, in this order."""
    keep = kept(table)
    turns = np.asarray(table["episodes.turns"], np.float64)[np.asarray(table["episode"])]
    penalty = np.full(len(table), options.keep_penalty)
    if options.keep_penalty_mode == "normalized":
        penalty = np.where(turns > 1, penalty / np.maximum(turns, 1), 0.0)
    reward = np.asarray(table["reward"], np.float64) + np.where(keep, penalty, 0.0)
    reward = reward - options.invalid_penalty * ~np.asarray(table["valid"], bool)
    subgoal = optional(table, "subgoal")
    if subgoal is None or options.consistency_penalty == 0:
        return reward
    text, parent = np.asarray(subgoal), np.asarray(table["parent"])
    before = np.where(parent >= 0, text[np.maximum(parent, 0)], -1)
    reworded = keep & (text >= 0) & (before >= 0) & (text != before)
    return reward + options.consistency_penalty * reworded
