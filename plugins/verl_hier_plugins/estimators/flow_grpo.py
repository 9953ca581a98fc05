"""Flow-GRPO of AgentFlow (arXiv 2510.05592), docs/methods/agentflow.md.

GRPO under its own name: the final outcome is copied to every planner turn, and turns of frozen modules are not trained.
How the released code weighs turns is not confirmed; here every episode has one vote.
"""

from dataclasses import dataclass

from verl_hier.credit import RETURN_COLUMNS
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.grpo import GRPOOptions, advantage

__all__ = ["FlowGRPOOptions", "advantage"]


@dataclass(frozen=True)
class FlowGRPOOptions(GRPOOptions):
    """GRPO's options and defaults."""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "flow_grpo",
        advantage,
        FlowGRPOOptions,
        summary="final outcome copied to every planner turn, z-scored over the task",
        source="arXiv 2510.05592; AgentFlow configuration",
        requires=RETURN_COLUMNS,
        confidence="A",
    )
