"""Flow-GRPO of AgentFlow (arXiv 2510.05592), docs/methods/agentflow.md.

GRPO under its own name: the final outcome is copied to every planner turn, and turns of frozen modules are not trained.
The released code makes one row of each planner turn and groups rows by the question, so its statistics count turns.
"""

from dataclasses import dataclass

from verl_hier.credit import RETURN_COLUMNS, WeightBy
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.grpo import GRPOOptions, advantage, weighs

__all__ = ["FlowGRPOOptions", "advantage"]


@dataclass(frozen=True)
class FlowGRPOOptions(GRPOOptions):
    """GRPO's options; longer episodes have more votes, as in the released code."""

    weight_by: WeightBy = "turn"
    """What has one vote in the statistics of the group: a planner turn, or an `episode`."""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "flow_grpo",
        advantage,
        FlowGRPOOptions,
        summary="final outcome copied to every planner turn, z-scored over the planner turns of the task",
        source="arXiv 2510.05592; lupantech/AgentFlow daemon.get_train_data_batch, trainer.py",
        requires=RETURN_COLUMNS,
        weighs=weighs,
        confidence="A",
    )
