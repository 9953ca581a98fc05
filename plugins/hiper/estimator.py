"""HiPER, hierarchical advantage estimation (arXiv 2602.16165), docs/estimators/hiper.md.

Paper §4; released form: JonP07/HiPER-agent `hiper_hae/core_hae.py`. Confidence A, reproduced by a fixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from verl_hier_plugins.hiper.levels import Levels, hae
from verl_hier_plugins.hiper.shaping import shaped_rewards

from verl_hier.credit import Credit, trained_only
from verl_hier.credit.tokens import combine_levels, has_token, on_mask
from verl_hier.trajectory.table import TurnTable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HiPEROptions:
    """Defaults are the released code's; the ALFWorld script sets both penalties to -0.3 and bootstraps."""

    gamma: float = 1.0
    """Discount a turn."""
    lam_turn: float = 1.0
    """GAE decay between the turns of a segment."""
    lam_seg: float = 0.95
    """GAE decay between segments."""
    norm_adv: bool = True
    """Whether each level is z-scored over the turns that carry it (on in all scripts)."""
    bootstrap_truncated: bool = False
    """Whether a path that ends without `done` bootstraps from its own last values."""
    keep_penalty: float = 0.0
    """Added to the reward of turns that keep their subgoal."""
    keep_penalty_mode: Literal["normalized", "fixed"] = "normalized"
    """normalized divides the penalty by the turns of the episode, so that it counts the share of kept turns."""
    consistency_penalty: float = 0.0
    """Added when a turn keeps its subgoal but words it differently; needs the turn column `subgoal`."""
    invalid_penalty: float = 0.1
    """Taken from the reward of an action that was not understood; set 0 when the environment does it."""


def advantage(table: TurnTable, options: HiPEROptions) -> Credit:
    """Credit per token: action, subgoal and switch tokens each by their own level; the other tokens get none."""
    levels = hae(table, shaped_rewards(table, options), options)
    turn = np.asarray(table["tokens.turn"])
    action, subgoal, switch = token_masks(table, levels)
    parts = [
        on_mask(level_values(table, values, turn, mask, options), turn, mask)
        for values, mask in ((levels.high, subgoal), (levels.term, switch), (levels.low, action))
    ]
    return Credit(combine_levels(parts, "sum"), per="token", returns=levels.low_target[turn])


def token_masks(table: TurnTable, levels: Levels) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) action tokens (the whole turn without a tag), subgoal tokens of segment starts, switch tokens."""
    turn = np.asarray(table["tokens.turn"])
    tagged = np.asarray(table["tokens.action"], bool)
    action = tagged | ~has_token(turn, tagged, len(table))[turn]
    subgoal = np.asarray(table["tokens.subgoal"], bool) & levels.starts[turn]
    switch = np.asarray(table["tokens.switch"], bool)
    if levels.term is None:
        switch = np.zeros_like(switch)
    trained = np.asarray(table["trained"], bool)[turn]
    return action & trained, subgoal & trained, switch & trained


def level_values(
    table: TurnTable, values: Floats | None, turn: NDArray[np.int64], mask: NDArray[np.bool_], options: HiPEROptions
) -> Floats:
    """(T,) one level, z-scored (population) over the trained turns with a token of its mask if asked for."""
    if values is None:
        return np.zeros(len(table))
    if not options.norm_adv:
        return trained_only(table, values)
    chosen = values[has_token(turn, mask, len(table))]
    if chosen.size == 0:
        return np.zeros(len(table))
    return (values - chosen.mean()) / (chosen.std() + 1e-8)
