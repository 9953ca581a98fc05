"""Low levels first, then what stands on them. HierSearch, https://arxiv.org/abs/2508.08088; docs/schedules.md."""

from dataclasses import dataclass
from itertools import accumulate

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class BottomUpOptions:
    """Options of `bottom_up`."""

    steps: tuple[int, ...] = (100,)
    """Steps of each stage but the last, which has no end. The default is ours; the paper trains by epochs."""
    levels: tuple[int, ...] = (1, 0)
    """The level that learns in each stage, in order; the others are frozen."""
    roles: tuple[str, ...] = ()
    """When given, the role that learns in each stage, instead of a level."""

    def __post_init__(self) -> None:
        stages = len(self.roles or self.levels)
        if len(self.steps) != stages - 1 or min(self.steps, default=0) < 1:
            raise ValueError(f"{stages} stages need {stages - 1} numbers of steps, each at least 1; got {self.steps}")


class BottomUp(Schedule):
    """Stage A trains the first level or role, stage B the second, to the end. A function of the step, so resuming is
    exact."""

    def __init__(self, options: BottomUpOptions) -> None:
        self._options = options
        self._ends = list(accumulate(options.steps))

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        options = self._options
        number = sum(step > end for end in self._ends)
        name = chr(ord("A") + number)
        if options.roles:
            return Phase(name, roles=frozenset({options.roles[number]}))
        return Phase(name, levels=frozenset({options.levels[number]}))


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `bottom_up` schedule."""
    return ScheduleSpec(
        "bottom_up",
        BottomUp,
        BottomUpOptions,
        summary="the low level learns for `steps` steps and is frozen, then the next one up",
        source="HierSearch, arXiv 2508.08088",
    )
