"""RLOO, leave-one-out baseline (arXiv 2402.14740), docs/methods/rloo.md.

GRPO with another centre and no scale.
"""

from dataclasses import dataclass

from verl_hier.credit import RETURN_COLUMNS, Centre, Scale
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.grpo import GRPOOptions, advantage, weighs

__all__ = ["RLOOOptions", "advantage"]


@dataclass(frozen=True)
class RLOOOptions(GRPOOptions):
    """GRPO's options with RLOO's centre and scale."""

    centre: Centre = "leave_one_out"
    """The mean of the other votes of the group."""
    scale: Scale = "none"
    """RLOO does not scale."""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "rloo",
        advantage,
        RLOOOptions,
        summary="return minus the mean of the other episodes of the task",
        source="arXiv 2402.14740 §2; verl compute_rloo_outcome_advantage",
        requires=RETURN_COLUMNS,
        weighs=weighs,
        confidence="A",
    )
