"""MetaAgent-X (arXiv 2605.14212), a designer and the executors of its script; docs/methods/metaagent_x.md."""

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
        summary="a designer scripts roles, order, tools and end; executors act the script out",
        source="MetaAgent-X, arXiv 2605.14212; PettingLLMs",
        roles={"designer": 0, "executor": 1},
        provides=("design_valid", "design_steps", "delivered", "final_valid"),
    )
