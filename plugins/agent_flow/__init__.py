"""Planner, executor, verifier and generator around a shared memory. AgentFlow, https://arxiv.org/abs/2510.05592;
docs/workers/agent_flow.md."""

from verl_hier_plugins.agent_flow.worker import AgentFlow, AgentFlowOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import WorkerSpec


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """The `agent_flow` worker."""
    return [
        WorkerSpec(
            name="agent_flow",
            factory=AgentFlow,
            options=AgentFlowOptions,
            summary="a planner chooses the next step, others carry it out, verify and answer; memory is shared",
            source="AgentFlow, arXiv 2510.05592 (modules and memory: confidence A)",
            doc="workers/agent_flow.md",
            roles={"planner": 0, "executor": 1, "verifier": 1, "generator": 1},
        )
    ]
