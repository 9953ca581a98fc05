"""GDRO, group advantages weighted by the class of the task (arXiv 2601.19280), docs/methods/gdro.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import RETURN_COLUMNS, Credit
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.grpo import GRPOOptions, weighs
from verl_hier_plugins.estimators.grpo import advantage as grpo_advantage


@dataclass(frozen=True)
class GDROEstimatorOptions(GRPOOptions):
    """Those of `grpo`."""


def advantage(table: TurnTable, options: GDROEstimatorOptions) -> Credit:
    """Credit of `grpo` times the weight of the task's class, which the schedule `gdro` has written."""
    credit = grpo_advantage(table, options)
    weight = np.asarray(table["class_weight"], np.float64)
    credit.values = credit.values * (weight[table.step_turn] if credit.per == "step" else weight)
    return credit


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "gdro",
        advantage,
        GDROEstimatorOptions,
        summary="credit of grpo times the present weight of the task's class",
        source="arXiv 2601.19280; kishanpb/verl-gdro ray_trainer.py",
        requires=("class_weight", *RETURN_COLUMNS),
        weighs=weighs,
        confidence="A",
    )
