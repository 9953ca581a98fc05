"""RLVMR, verifiable rewards for meta-reasoning (arXiv 2507.22844), docs/methods/rlvmr.md.

The weight of the two terms and the exact rule rewards are to be confirmed (confidence B-).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    Normalisation,
    episode_advantage,
    episodes_to_turns,
    trained_only,
    turn_advantage,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class RLVMROptions:
    """Tags are the kinds of step (planning, explore, reflection, monitor), -1 without one."""

    alpha: NonNegative = 0.5
    """Weight of the trajectory term; 1 is GRPO."""
    eps: NonNegative = 1e-6
    """Added to the standard deviations."""


def advantage(table: TurnTable, options: RLVMROptions) -> Floats:
    """(T,) alpha times the episode's z-score plus the rest times the step's z-score among steps of the same tag."""
    episode = episodes_to_turns(table, episode_advantage(table, eps=options.eps))
    tagged = np.asarray(table["tag"]) >= 0
    kernel: Normalisation = {"eps": options.eps, "singleton": "zero"}
    step = turn_advantage(table, table["tag_reward"], ("group", "tag"), where=tagged, **kernel)
    return trained_only(table, options.alpha * episode + (1.0 - options.alpha) * step)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "rlvmr",
        advantage,
        RLVMROptions,
        summary="episode z-score mixed with the z-score among steps of the same tag",
        source="arXiv 2507.22844 (reading notes)",
        requires=("group", "tag", "tag_reward", *RETURN_COLUMNS),
        confidence="B",
    )
