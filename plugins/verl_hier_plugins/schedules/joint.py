"""One phase for ever: everybody learns in every step, or chosen roles do; docs/schedules.md."""

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class JointOptions:
    """Options of `joint`."""

    roles: tuple[str, ...] = ()
    """Roles that learn, the others only act (AgentFlow trains its planner alone); empty: all."""


class Joint(Schedule):
    """All levels, and all or the chosen roles, always."""

    def __init__(self, options: JointOptions) -> None:
        self._options = options

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint", roles=frozenset(self._options.roles) or None)


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `joint` schedule."""
    return ScheduleSpec(
        "joint", Joint, JointOptions, summary="all levels, or chosen roles, learn in every step", doc="schedules.md"
    )
