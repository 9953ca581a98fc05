"""Roles co-evolve in stages. MetaAgent-X, https://arxiv.org/abs/2605.14212; docs/schedules.md."""

from dataclasses import dataclass
from typing import Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import AboveZeroToOne
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class StagewiseOptions:
    """Options of `stagewise`."""

    mode: Literal["hard", "soft"] = "soft"
    """`hard` trains the active level alone; `soft` trains all and weighs the inactive ones down."""
    period: int = 10
    """Steps each stage lasts; the paper has 30 for hard stages, the released script 10 for soft ones."""
    levels: tuple[int, ...] = (1, 0)
    """The active level of each stage, in order; the paper begins with the executor."""
    inactive_weight: AboveZeroToOne = 2e-4
    """Loss weight of inactive levels in soft stages; for 0 take `mode: hard`. The paper's learning rates are 1e-9 and
    5e-6."""

    def __post_init__(self) -> None:
        if self.period < 1 or len(set(self.levels)) < 2 or len(set(self.levels)) < len(self.levels):
            raise ValueError("period must be at least 1 and levels must name at least two different levels")


class Stagewise(Schedule):
    """Stage A has the first level active, stage B the second, and so on. A function of the step, so resuming is
    exact."""

    def __init__(self, options: StagewiseOptions) -> None:
        self._options = options

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        options = self._options
        number = ((step - 1) // options.period) % len(options.levels)
        name, active = chr(ord("A") + number), options.levels[number]
        if options.mode == "hard":
            return Phase(name, levels=frozenset({active}))
        inactive = sorted(level for level in options.levels if level != active)
        return Phase(name, weights=tuple((level, options.inactive_weight) for level in inactive))


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `stagewise` schedule."""
    return ScheduleSpec(
        "stagewise",
        Stagewise,
        StagewiseOptions,
        summary="one level is active for `period` steps, the others are frozen or weighed down",
        source="MetaAgent-X, arXiv 2605.14212; PettingLLMs multi_agents_ppo_trainer.py",
        weighs=lambda options: "mode: soft" if options.mode == "soft" else "",
    )
