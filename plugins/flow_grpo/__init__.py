"""Flow-GRPO (arXiv 2510.05592), docs/estimators/flow_grpo.md."""

from verl_hier_plugins.flow_grpo.estimator import FlowGRPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

FLOW_GRPO = EstimatorSpec(
    name="flow_grpo",
    factory=advantage,
    options=FlowGRPOOptions,
    summary="final outcome copied to every planner turn, z-scored over the task",
    source="arXiv 2510.05592; AgentFlow configuration",
    doc="estimators/flow_grpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `flow_grpo`."""
    return [FLOW_GRPO]
