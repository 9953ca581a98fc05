"""Planner and executor in one model. HiMAC, https://arxiv.org/abs/2603.00977; docs/workers/planner_executor.md."""

from verl_hier_plugins.planner_executor.worker import PlannerExecutor, PlannerExecutorOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import WorkerSpec


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """The `planner_executor` worker."""
    return [
        WorkerSpec(
            name="planner_executor",
            factory=PlannerExecutor,
            options=PlannerExecutorOptions,
            summary="a planner writes a blueprint of subgoals, an executor works on them one by one",
            source="HiMAC, arXiv 2603.00977 (confidence B)",
            doc="workers/planner_executor.md",
            roles={"planner": 0, "executor": 1},
        )
    ]
