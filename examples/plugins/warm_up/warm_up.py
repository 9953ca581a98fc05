"""One level learns first, all levels afterwards: the smallest schedule."""

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.schedule` in a recipe."""

    steps: int = 10
    """Trainer steps in which only `level` learns."""
    level: int = 1
    """The level that learns first; 0 is the highest."""


class WarmUp(Schedule):
    """A function of the step, so that a resumed run continues in the right phase."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def phase(self, step: int) -> Phase:
        """The phase of a trainer step; the first step is 1."""
        if step <= self._options.steps:
            return Phase("warm_up", levels=frozenset({self._options.level}))
        return Phase("joint")


SCHEDULE = ScheduleSpec(
    name="warm_up",
    factory=WarmUp,
    options=Options,
    summary="one level learns first, all levels afterwards",
    source="example",
)


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """Registers `warm_up`."""
    return SCHEDULE
