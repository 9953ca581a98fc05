"""What a person reads of a training run: a line for each step, and at the end what was reached."""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from verl_hier.compat.validation_success import RETURN, SUCCESS
from verl_hier.training.schedule import phase_of

_CREDIT = re.compile(r"hier/credit/(.+)/mean")
REACHED = {"success": "hier/episodes/success", "return": "hier/episodes/return_mean"}
"""What the episodes of a step have reached, by name, and its metric."""


class Progress:
    """Makes the lines; it knows the number of steps and how long the last ones took."""

    def __init__(self, total: int | None) -> None:
        """
        Args:
            total: the step after which the run ends; None when that is not known.
        """
        self._total = total
        self._seconds: deque[float] = deque(maxlen=10)

    def line(self, record: Mapping[str, Any]) -> str:
        """A line for the metrics of a step; each is given once, in order."""
        cells = self.cells(record)
        validation = [f"validation {cells['validation']}"] if "validation" in cells else []
        if "seconds" not in cells:
            return "  ".join([f"before step {record['step'] + 1}", *validation])
        parts = [f"step {cells['step']}", f"{cells['trained']:<12}"]
        parts += [f"{name} {cells[name]}" for name in REACHED if name in cells]
        parts += [f"{cells['tokens']:>5} tokens", f"{cells['seconds']:>5} s"]
        parts += [f"{cells['left']} left"] if "left" in cells else []
        parts += [f"{cells['cut']} of the turns cut"] if "cut" in cells else []
        parts += [f"{cells['alarms']} alarm(s)"] if "alarms" in cells else []
        return "  ".join([*parts, *validation])

    def cells(self, record: Mapping[str, Any]) -> dict[str, str]:
        """What there is to say of a step, by name.

        `step` and `validation`, and of a step that trained `trained` (its phase and roles), `success`, `return`,
        `tokens`, `tokens/s`, `seconds`, the share of turns that were `cut` by their token limit, `alarms`, and the time
        that is `left`; the last three where there is something to say.
        """
        step, held_out = record["step"], validation_of(record)
        cells = {} if held_out is None else {"validation": f"{held_out:.2f}"}
        if "timing_s/step" not in record:
            return {"step": f"{step}", **cells}
        seconds, tokens = record["timing_s/step"], record.get("hier/tokens/generated", 0)
        self._seconds.append(seconds + record.get("timing_s/testing", 0.0))
        cells |= {
            "step": f"{step}" if self._total is None else f"{step:>{len(str(self._total))}}/{self._total}",
            "trained": learners(record),
            **{name: f"{record[key]:.2f}" for name, key in REACHED.items() if key in record},
            "tokens": count(tokens),
            "tokens/s": count(tokens / seconds) if seconds > 0 else "",
            "seconds": f"{seconds:.1f}",
        }
        if record.get("hier/turns/cut_share"):
            cells["cut"] = f"{record['hier/turns/cut_share']:.1%}"
        if record.get("hier/guards/alarms"):
            cells["alarms"] = f"{record['hier/guards/alarms']:.0f}"
        if self._total is not None and step < self._total:
            cells["left"] = duration((self._total - step) * statistics.mean(self._seconds))
        return cells


def learners(record: Mapping[str, Any]) -> str:
    """The phase of the schedule, and the roles that were trained: `A: planner`, `joint: planner, executor`."""
    roles = [found[1] for found in map(_CREDIT.fullmatch, record) if found]
    return ": ".join(filter(None, (phase_of(record), ", ".join(roles))))


def reached(record: Mapping[str, Any]) -> list[str]:
    """Success and return of the step's episodes, as far as the environment tells them."""
    return [f"{name} {record[key]:.2f}" for name, key in REACHED.items() if key in record]


def validation_of(record: Mapping[str, Any]) -> float | None:
    """Success on held-out tasks, or their return where the environment knows no success; None when the step did not
    measure it. The mean over all episodes; of tasks that verl's reward function scores, and in the records of earlier
    versions, the mean over the kinds of tasks."""
    for name in (SUCCESS, RETURN):
        if name in record:
            return float(record[name])
    found = [value for name, value in record.items() if name.startswith("val-core/") and "/acc/mean@" in name]
    return statistics.mean(found) if found else None


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Sentences on what a run has reached."""
    trained = [record for record in records if "timing_s/step" in record]
    held_out = [(record["step"], value) for record in records if (value := validation_of(record)) is not None]
    lines = []
    if trained:
        last = trained[-1]
        seconds = sum(record["timing_s/step"] + record.get("timing_s/testing", 0.0) for record in trained)
        what = f"; the last one: {', '.join(reached(last))}" if reached(last) else ""
        lines.append(f"{last['step']} steps in {duration(seconds)}, its start not counted{what}")
    if held_out:
        measured = ", ".join(
            f"{value:.2f} after step {step}" for step, value in (held_out[0], held_out[-1])[-len(held_out) :]
        )
        lines.append(f"validation: {measured}")
    return lines


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count(number: float) -> str:
    """`812`, `8.1k`, `2.3M`."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f}{unit}"
    return f"{number:.0f}"
