"""Everybody learns in every step; docs/schedules.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import NoOptions, ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


class Joint(Schedule):
    """All levels and roles, always."""

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint")


@hookimpl
def hier_schedules() -> list[ScheduleSpec]:
    """The `joint` schedule."""
    return [ScheduleSpec("joint", Joint, summary="all levels learn in every step", doc="schedules.md")]
