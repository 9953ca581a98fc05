"""A designer and the executors of its script or graph; docs/methods/metaagent_x.md, docs/methods/mas_orchestra.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import WorkerSpec
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="designer_executor",
        factory=lazy("verl_hier_plugins.workers.designer_executor.worker:DesignerExecutor"),
        options=DesignerExecutorOptions,
        summary="a designer scripts roles, order, tools and end, or draws a graph of agents; executors act it out",
        source="MetaAgent-X, arXiv 2605.14212; PettingLLMs; MAS-Orchestra, arXiv 2601.14652",
        roles={"designer": 0, "executor": 1},
        transcribe=lazy("verl_hier_plugins.workers.designer_executor.transcribe:transcribe"),
        # Elsewhere the expert plays designer and executors itself.
        transcribed=lambda options: options.only_speaks,
        provides=("design_valid", "design_steps", "delivered", "final_valid"),
    )
