"""EPO: the entropies of earlier steps, turn by turn, and how far the present ones leave them; docs/methods/epo.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from verl_hier.credit import Floats
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, CountOrZero
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule
from verl_hier_plugins.estimators.epo import outside


@dataclass(frozen=True)
class EPOScheduleOptions:
    """Options of `epo`. Defaults are the released function's; its script has a range of 0.5 to 1.5."""

    penalty: float = 0.1
    """Penalty of an entropy outside of the range (κ)."""
    least: float = 0.8
    """Lower end of the range, as a multiple of the mean entropy of such turns in earlier steps."""
    most: float = 1.2
    """Upper end of the range."""
    compare: Literal["token", "turn"] = "token"
    """What is compared with the range: the entropy of each token, or the mean over the turn."""
    steps: Count | None = 150
    """Steps over which the weight of the smoothing falls, first slowly, then fast; null keeps it at 1."""
    from_turn: CountOrZero = 0
    """Turns below this number are never penalised; the released code waits for the second half of the longest
    episode."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"least must be between 0 and most, got {self.least} and {self.most}")


class EPO(Schedule):
    """All learn in every step; the entropies of the turns are compared with those of earlier steps."""

    def __init__(self, options: EPOScheduleOptions) -> None:
        self._options = options
        self._sums: list[float] = []
        self._counts: list[int] = []

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint")

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`; adds the columns `entropy_mean` and `smoothing`.

        Turns of a number that no earlier step had are compared with themselves, which never penalises them.
        """
        options, number = self._options, np.asarray(table["turn"])
        entropy = turn_entropies(table)
        means = np.full(max(int(number.max(initial=-1)) + 1, len(self._sums)), np.nan)
        means[: len(self._sums)] = [s / n if n else np.nan for s, n in zip(self._sums, self._counts, strict=True)]
        known = ~np.isnan(means[number])
        weight = 1.0 if options.steps is None else smoothing_weight(step - 1, options.steps)
        table.turns["entropy_mean"] = np.where(known, means[number], entropy)
        table.turns["smoothing"] = np.where(known & (number >= options.from_turn), weight, 0.0)
        metrics = self._metrics(table, entropy, weight)
        self._remember(number, entropy, np.asarray(table["trained"], bool))
        return metrics

    def _metrics(self, table: TurnTable, entropy: Floats, weight: float) -> dict[str, float]:
        """The penalty as the released loss has it, and the share of what is inside of the range."""
        options, known = self._options, np.asarray(table["smoothing"]) > 0
        mean = np.asarray(table["entropy_mean"])
        if options.compare == "token" and "tokens.entropy" in table:
            turn = np.asarray(table["tokens.turn"])
            entropy, mean, known = np.asarray(table["tokens.entropy"], np.float64), mean[turn], known[turn]
        out = outside(entropy, mean, options.least, options.most)[known] != 0
        share = float(out.mean()) if out.size else 0.0
        return {
            "hier/epo/penalty": options.penalty * weight * share,
            "hier/epo/inside": 1.0 - share,
            "hier/epo/weight": weight,
        }

    def _remember(self, number: np.ndarray, entropy: Floats, trained: np.ndarray) -> None:
        """Add the mean entropy of each turn number in this step to the history."""
        for turn in np.unique(number[trained]).tolist():
            while len(self._sums) <= turn:
                self._sums.append(0.0)
                self._counts.append(0)
            self._sums[turn] += float(entropy[trained & (number == turn)].mean())
            self._counts[turn] += 1

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return {"sums": self._sums, "counts": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._sums, self._counts = list(state["sums"]), list(state["counts"])


def turn_entropies(table: TurnTable) -> Floats:
    """(T,) mean entropy of the tokens of each turn: the policy's where the trainer has computed it, else the column
    `entropy`."""
    if "tokens.entropy" not in table:
        return np.asarray(table["entropy"], np.float64)
    turn = np.asarray(table["tokens.turn"])
    count = np.maximum(np.bincount(turn, minlength=len(table)), 1)
    return np.bincount(turn, np.asarray(table["tokens.entropy"], np.float64), len(table)) / count


def smoothing_weight(step: float, steps: int) -> float:
    """Weight of the smoothing at a step of `steps`: from 1 slowly to 0.83 in the first half, then from 0.8 down."""
    step, half = min(max(step, 0), steps), steps // 2
    if step <= half:
        return 1.0 - 0.2 * (1.0 - math.exp(-2.0 * step / half)) if half else 1.0
    return 0.8 * math.exp(-3.0 * (step - half) / (steps - half))


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `epo` schedule."""
    return ScheduleSpec(
        "epo",
        EPO,
        EPOScheduleOptions,
        summary="all learn; entropies are compared with those of the same turn in earlier steps",
        source="arXiv 2509.22576; WujiangXu/EPO dp_actor.py::generate_entropy_penalty",
        provides=("entropy_mean", "smoothing"),
        reads=("tokens.entropy",),
    )
