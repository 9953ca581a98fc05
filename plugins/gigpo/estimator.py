"""GiGPO (arXiv 2505.10978), docs/estimators/gigpo.md.

Paper §3; released form: verl-agent `gigpo/core_gigpo.py`. Confidence A, reproduced by a fixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from verl_hier_plugins.gigpo.anchors import similar_anchors

from verl_hier.credit import (
    episode_advantage,
    episodes_to_turns,
    group_advantage,
    group_ids,
    rewards_to_go,
    trained_only,
)
from verl_hier.credit.paths import WeightBy
from verl_hier.trajectory.table import TurnTable


@dataclass(frozen=True)
class GiGPOOptions:
    """Defaults are the released code's."""

    omega: float = 1.0
    """Weight of the step advantage; 0 is GRPO."""
    gamma: float = 0.95
    """Discount of the reward-to-go that the step advantage compares."""
    norm: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Whether both levels divide by the sample standard deviation."""
    weight_by: WeightBy = "turn"
    """Votes in the episode statistics: the released code counts rows, so long episodes weigh more; `episode` gives
    each one vote."""
    similarity: float | None = None
    """Least text similarity for two states to count as one; null compares exactly."""
    eps: float = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: GiGPOOptions) -> NDArray[np.float64]:
    """(T,) episode advantage plus omega times the advantage among turns of the task with the same anchor state."""
    scale = "sample" if options.norm == "mean_std_norm" else "none"
    episode = episode_advantage(table, weight_by=options.weight_by, scale=scale, eps=options.eps)
    return trained_only(table, episodes_to_turns(table, episode) + options.omega * steps(table, options))


def steps(table: TurnTable, options: GiGPOOptions) -> NDArray[np.float64]:
    """(T,) the step advantage: reward-to-go among equal anchors, 0 for a state that only one turn has seen."""
    anchor = np.asarray(table["anchor"])
    if options.similarity is not None:
        anchor = similar_anchors(table["group"], anchor, table.anchors, options.similarity)
    return group_advantage(
        rewards_to_go(table, options.gamma),
        group_ids(table["group"], anchor),
        where=np.asarray(table["trained"], bool) & (anchor >= 0),
        scale="sample" if options.norm == "mean_std_norm" else "none",
        eps=options.eps,
        singleton="zero",
    )
