"""Teams: named roles, who speaks after whom, and a lead whose agents work side by side; docs/methods/team.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import WorkerSpec
from verl_hier_plugins.workers.team.options import RatingOptions as RatingOptions
from verl_hier_plugins.workers.team.options import RoleOptions as RoleOptions
from verl_hier_plugins.workers.team.options import TeamOptions as TeamOptions
from verl_hier_plugins.workers.team.order import TopologyOptions as TopologyOptions


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="team",
        factory=lazy("verl_hier_plugins.workers.team.worker:Team"),
        options=TeamOptions,
        summary="named roles talk in an order that the recipe describes, or a lead has agents that work side by side",
        source="Dr. MAS, arXiv 2602.08847; MARFT, arXiv 2504.16129; CORY, arXiv 2410.06101; MATPO, arXiv 2510.04678; "
        "WideSeek-R1, arXiv 2602.04634",
        active_roles=TeamOptions.levels,
        transcribe=lazy("verl_hier_plugins.workers.team.transcribe:transcribe"),
        # The expert plays the others itself.
        transcribed=lambda options: options.hands_out_subgoals,
        stand_ins=True,
        provides=("format", "access_calls", "limit_failed", "repeat_failed", "answered", "rates", "share"),
    )
