"""CCPO's first version: roles against the history of both outcomes (arXiv 2603.21563), docs/methods/ccpo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_hier.credit import Floats, episode_sum
from verl_hier.credit.paths import code_mask
from verl_hier.errors import RecipeError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, ZeroToOne
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule

OUTCOMES = ("difference", "joint", "solo")


@dataclass(frozen=True)
class CCPOHistoryOptions:
    """Options of `ccpo_history`. Defaults are the released code's."""

    roles: tuple[str, ...] = ("thinker",)
    """Roles that are rewarded by the difference to the solo episodes; the others by a mixture of both outcomes."""
    slope: NonNegative = 1.0
    """Factor of a standardised difference before the hyperbolic tangent (α)."""
    gate: NonNegative = 1.0
    """Factor of the mean difference, in its standard deviations, in the weight of the joint outcome (η)."""
    decay: ZeroToOne = 0.99
    """Weight of what means and variances were before a step."""
    least: Count = 10
    """Episodes that must have been seen before anything is standardised."""
    eps: NonNegative = 1e-6
    """A variance up to this one counts as 1."""


class History:
    """Running means and variances of the returns of joint and solo episodes, and of their difference."""

    def __init__(self, options: CCPOHistoryOptions) -> None:
        self._options = options
        self.seen = 0
        self.mean = dict.fromkeys(OUTCOMES, 0.0)
        self.variance = dict.fromkeys(OUTCOMES, 1.0)

    def deviation(self, name: str) -> float:
        """Standard deviation of one of the outcomes."""
        variance = self.variance[name]
        return float(np.sqrt(variance)) if variance > self._options.eps else 1.0

    @property
    def gate(self) -> float:
        """Weight of the joint outcome in the reward of the other roles, from 0 to 1."""
        ratio = self.mean["difference"] / self.deviation("difference")
        return float(1 / (1 + np.exp(-self._options.gate * ratio)))

    def rewards(self, joint: Floats, solo: Floats) -> tuple[Floats, Floats]:
        """(E,) rewards of the credited roles and of the others, by what was seen before."""
        difference = joint - solo
        if self.seen < self._options.least:
            return difference, joint
        share = self.gate
        credited = np.tanh(self._options.slope * self._standard("difference", difference))
        return credited, share * self._standard("joint", joint) + (1 - share) * self._standard("solo", solo)

    def update(self, joint: Floats, solo: Floats) -> None:
        """Take a step into account."""
        for name, values in zip(OUTCOMES, (joint - solo, joint, solo), strict=True):
            decay = self._options.decay if self.seen else 0.0
            self.mean[name] = decay * self.mean[name] + (1 - decay) * float(values.mean())
            self.variance[name] = decay * self.variance[name] + (1 - decay) * float(values.var())
        self.seen += len(joint)

    def _standard(self, name: str, values: Floats) -> Floats:
        return (values - self.mean[name]) / self.deviation(name)


class CCPOHistory(Schedule):
    """All learn in every step."""

    def __init__(self, options: CCPOHistoryOptions) -> None:
        self._options = options
        self.history = History(options)

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint")

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`; adds the column `history_reward`."""
        reward = np.zeros(len(table))
        counted = np.asarray(table["episodes.trained"], bool)
        if counted.any():
            if "solo_return" not in table:
                raise RecipeError(
                    "hier.schedule.name: ccpo_history compares episodes with those of some roles alone, which the "
                    "sampler does not play; set hier.sampler.name: ccpo."
                )
            joint = np.asarray(table["episodes.return"], np.float64)
            solo = episode_sum(table, table["solo_return"]) / np.maximum(np.asarray(table["episodes.turns"]), 1)
            credited, others = self.history.rewards(joint, solo)
            owner = np.asarray(table["episode"])
            reward = np.where(code_mask(table, "role", self._options.roles), credited[owner], others[owner])
            self.history.update(joint[counted], solo[counted])
        table.turns["history_reward"] = reward
        names = {f"hier/ccpo/{name}": mean for name, mean in self.history.mean.items()}
        return {**names, "hier/ccpo/gate": self.history.gate}

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        history = self.history
        return {"seen": history.seen, "mean": dict(history.mean), "variance": dict(history.variance)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self.history.seen = int(state["seen"])
        self.history.mean, self.history.variance = dict(state["mean"]), dict(state["variance"])


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `ccpo_history` schedule."""
    return ScheduleSpec(
        "ccpo_history",
        CCPOHistory,
        CCPOHistoryOptions,
        summary="all learn; keeps running means of what the team and some of its roles alone return",
        source="arXiv 2603.21563, first version; bhai114/ccpo CCPO-v1 historical_normalizer.py",
        provides=("history_reward",),
    )
