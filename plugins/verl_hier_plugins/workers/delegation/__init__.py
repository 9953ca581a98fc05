"""CoDA and HierSearch (arXiv 2512.12716, 2508.08088), a planner that delegates to agents; docs/methods/coda.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import WorkerSpec
from verl_hier_plugins.workers.delegation.options import EXECUTOR
from verl_hier_plugins.workers.delegation.options import AgentOptions as AgentOptions
from verl_hier_plugins.workers.delegation.options import DelegationOptions as DelegationOptions


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="delegation",
        factory=lazy("verl_hier_plugins.workers.delegation.worker:Delegation"),
        options=DelegationOptions,
        summary="a planner delegates tasks to agents in contexts of their own, and may have their evidence refined",
        source="CoDA, arXiv 2512.12716; HierSearch, arXiv 2508.08088 (confidence A)",
        roles={"planner": 0, EXECUTOR: 1, "refiner": 1},
        active_roles=DelegationOptions.roles,
        transcribe=lazy("verl_hier_plugins.workers.delegation.transcribe:transcribe"),
    )
