"""What a person reads of a training run: a line for each step, and at the end what was reached."""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from verl_hier.training.schedule import phase_of

_CREDIT = re.compile(r"hier/credit/(.+)/mean")


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
        """A line for the metrics of a step."""
        step, held_out = record["step"], validation_of(record)
        validation = [] if held_out is None else [f"validation {held_out:.2f}"]
        if "timing_s/step" not in record:
            return "  ".join([f"before step {step + 1}", *validation])
        self._seconds.append(record["timing_s/step"] + record.get("timing_s/testing", 0.0))
        parts = [f"step {step}" if self._total is None else f"step {step:>{len(str(self._total))}}/{self._total}"]
        parts += [
            f"{learners(record):<12}",
            *reached(record),
            f"{count(record.get('hier/tokens/generated', 0)):>5} tokens",
        ]
        parts.append(f"{record['timing_s/step']:5.1f} s")
        if self._total is not None and step < self._total:
            parts.append(f"{duration((self._total - step) * statistics.mean(self._seconds))} left")
        return "  ".join([*parts, *validation])


def learners(record: Mapping[str, Any]) -> str:
    """The phase of the schedule, and the roles that were trained: `A: planner`, `joint: planner, executor`."""
    roles = [found[1] for found in map(_CREDIT.fullmatch, record) if found]
    return ": ".join(filter(None, (phase_of(record), ", ".join(roles))))


def reached(record: Mapping[str, Any]) -> list[str]:
    """Success and return of the step's episodes, as far as the environment tells them."""
    names = {"success": "hier/episodes/success", "return": "hier/episodes/return_mean"}
    return [f"{name} {record[key]:.2f}" for name, key in names.items() if key in record]


def validation_of(record: Mapping[str, Any]) -> float | None:
    """Success on held-out tasks, or their return where the environment knows no success; None when the step did not
    measure it. The mean over the kinds of tasks."""
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
        lines.append(f"{last['step']} steps in {duration(seconds)}{what}")
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
