"""RLOO (arXiv 2402.14740), docs/estimators/rloo.md."""

from verl_hier_plugins.grpo import GRPO
from verl_hier_plugins.rloo.estimator import RLOOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

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
