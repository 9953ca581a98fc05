"""RLOO (arXiv 2402.14740), docs/estimators/rloo.md: GRPO's plugin with a leave-one-out baseline and no scale."""

from dataclasses import dataclass

from verl_hier_plugins.grpo import GRPO
from verl_hier_plugins.grpo.estimator import GRPOOptions, advantage

from verl_hier.credit.groups import Centre, Scale
from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec


@dataclass(frozen=True)
class RLOOOptions(GRPOOptions):
    """GRPO's options with RLOO's centre and scale."""

    centre: Centre = "leave_one_out"
    """The mean of the other votes of the group."""
    scale: Scale = "none"
    """RLOO does not scale."""


RLOO = EstimatorSpec(
    name="rloo",
    factory=advantage,
    options=RLOOOptions,
    summary="return minus the mean of the other episodes of the task",
    source="arXiv 2402.14740 §2; verl compute_rloo_outcome_advantage",
    doc="estimators/rloo.md",
    requires=GRPO.requires,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `rloo`."""
    return [RLOO]
