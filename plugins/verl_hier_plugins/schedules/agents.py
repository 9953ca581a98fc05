"""Roles learn one after the other. MARFT, https://arxiv.org/abs/2504.16129, CORY and SeeUPO; docs/schedules.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class AgentsOptions:
    """Options of `agents`."""

    roles: tuple[str, ...] = ("planner", "executor")
    """Roles in the order in which they act."""
    order: Literal["forward", "reverse"] = "forward"
    """`forward`: the first role learns first, as in MARFT, and as the parts of CORY's two copies are exchanged.
    `reverse`: the last one first, so that each learns in front of roles that have learned already, as in SeeUPO."""
    period: Count = 1
    """Steps that each phase lasts (MARFT's `agent_iteration_interval`)."""
    rounds: Count | None = None
    """How often each role has its turn before all of them learn together; omitted: for ever."""

    def __post_init__(self) -> None:
        if len(self.roles) < 2 or len(set(self.roles)) < len(self.roles):
            raise ValueError("roles must name at least two different roles")


class Agents(Schedule):
    """One role after the other. A function of the step, so resuming is exact; phases are named after the roles."""

    def __init__(self, options: AgentsOptions) -> None:
        self._options = options

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        options = self._options
        number = (step - 1) // options.period
        round_, place = divmod(number, len(options.roles))
        if options.rounds is not None and round_ >= options.rounds:
            return Phase("joint")
        role = options.roles[place if options.order == "forward" else -1 - place]
        return Phase(role, roles=frozenset({role}))


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `agents` schedule."""
    return ScheduleSpec(
        "agents",
        Agents,
        AgentsOptions,
        summary="one role learns at a time, in the order in which they act or from the last one",
        source="MARFT, arXiv 2504.16129; CORY, arXiv 2410.06101; SeeUPO, arXiv 2602.06554",
    )
