"""GRPO on turns, episodes or roles (arXiv 2402.03300), docs/estimators/grpo.md."""

from verl_hier_plugins.grpo.estimator import GRPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

GRPO = EstimatorSpec(
    name="grpo",
    factory=advantage,
    options=GRPOOptions,
    summary="return against the other episodes of the task, z-scored",
    source="arXiv 2402.03300 §4.1; verl compute_grpo_outcome_advantage",
    doc="estimators/grpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `grpo`."""
    return [GRPO]
