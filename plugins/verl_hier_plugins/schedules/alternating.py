"""Levels take turns. HiMAC, https://arxiv.org/abs/2603.00977, iterative co-evolution; docs/schedules.md."""

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class AlternatingOptions:
    """Options of `alternating`."""

    period: int = 1
    """Steps each phase lasts."""
    levels: tuple[int, ...] = (0, 1)
    """The level that learns in each phase, in order."""

    def __post_init__(self) -> None:
        if self.period < 1 or not self.levels:
            raise ValueError("period must be at least 1 and levels must not be empty")


class Alternating(Schedule):
    """Phase A trains the first level, phase B the second, and so on. A function of the step, so resuming is exact."""

    def __init__(self, options: AlternatingOptions) -> None:
        self._options = options

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        number = ((step - 1) // self._options.period) % len(self._options.levels)
        return Phase(chr(ord("A") + number), levels=frozenset({self._options.levels[number]}))


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `alternating` schedule."""
    return ScheduleSpec(
        "alternating",
        Alternating,
        AlternatingOptions,
        summary="one level learns at a time, in turns of `period` steps",
        source="HiMAC, arXiv 2603.00977 (confidence B)",
    )
