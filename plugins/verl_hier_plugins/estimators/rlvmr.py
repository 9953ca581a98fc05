"""RLVMR, verifiable rewards for meta-reasoning (arXiv 2507.22844), docs/methods/rlvmr.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    Normalisation,
    Scale,
    Singleton,
    WeightBy,
    return_advantage,
    trained_only,
    turn_advantage,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class RLVMROptions:
    """Defaults are the released code's. Tags are the kinds of step (planning, explore, reflection, monitor), -1 without
    one."""

    episode_weight: NonNegative = 1.0
    """Weight of the episode's advantage."""
    step_weight: NonNegative = 1.0
    """Weight of the step's advantage among steps of the same tag; 0 is GRPO."""
    norm: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Whether both levels divide by the sample standard deviation."""
    weight_by: WeightBy = "turn"
    """Votes in the episode statistics: the released code counts rows, so long episodes weigh more; `episode` gives
    each one vote."""
    untagged: Literal["group", "none"] = "group"
    """Whether steps without a tag are a group of their own, or have no step advantage."""
    singleton: Singleton = "raw"
    """A step that is alone with its tag keeps its raw rule reward, or gets 0."""
    format_penalty: NonNegative = 0.0
    """Taken from the score of an episode on turns whose format is wrong (`format` is 0, or not `valid` where no worker
    fills that column), and on no other turn."""
    eps: NonNegative = 1e-6
    """Added to the standard deviations."""


def advantage(table: TurnTable, options: RLVMROptions) -> Floats:
    """(T,) the episode's advantage over the task, plus the step's among the steps of the task with the same tag."""
    scale: Scale = "sample" if options.norm == "mean_std_norm" else "none"
    episode = return_advantage(table, options.format_penalty, weight_by=options.weight_by, scale=scale, eps=options.eps)
    compared = None if options.untagged == "group" else np.asarray(table["tag"]) >= 0
    kernel: Normalisation = {"scale": scale, "eps": options.eps, "singleton": options.singleton}
    step = turn_advantage(table, table["tag_reward"], ("group", "tag"), where=compared, **kernel)
    return trained_only(table, options.episode_weight * episode + options.step_weight * step)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "rlvmr",
        advantage,
        RLVMROptions,
        summary="advantage of the episode plus that of the step among steps of the same tag",
        source="arXiv 2507.22844; RLVMR rlvmr/core_rlvmr.py::compute_rlvmr_outcome_advantage",
        requires=("group", "tag", "tag_reward", *RETURN_COLUMNS),
        confidence="A",
    )
