"""The kit for authors of schedules.

from verl_hier.testing import check_schedule


def test_my_schedule() -> None:
    check_schedule(MY_SPEC)
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.host.specs import ScheduleSpec
from verl_hier.testing.estimator import random_table
from verl_hier.training.schedule import Phase, Schedule

ROLES: dict[str, int] = {"planner": 0, "executor": 1}
"""The roles of a worker with two levels."""
_TABLES = 5
"""Steps with a turn table."""


@dataclass(frozen=True)
class _Subject:
    spec: ScheduleSpec
    options: Any
    roles: Mapping[str, int]
    steps: int

    def fail(self, sentence: str) -> None:
        raise AssertionError(f"schedule {self.spec.name!r} {sentence}")

    def make(self) -> Schedule:
        made = self.spec.factory(self.options)
        if not isinstance(made, Schedule):
            self.fail(f"has a factory that makes no Schedule but a {type(made).__name__}.")
        assert isinstance(made, Schedule)
        return made

    def phase(self, schedule: Schedule, step: int) -> Phase:
        """The phase of a step; fails when the schedule raises or says nothing."""
        try:
            phase = schedule.phase(step)
        except Exception as error:
            raise AssertionError(
                f"schedule {self.spec.name!r} breaks in step {step}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(phase, Phase):
            self.fail(f"gives no Phase for step {step} but a {type(phase).__name__}.")
        return phase

    def observe(self, schedule: Schedule, step: int) -> None:
        """Give the schedule the metrics of a step, which do not say everything in every step."""
        success = 0.5 + 0.5 * math.sin(step / 7)
        known = {"hier/episodes/success": success, "hier/episodes/return_mean": success} if step % 5 else {}
        try:
            schedule.observe(step, {"training/global_step": step, **known})
        except Exception as error:
            raise AssertionError(
                f"schedule {self.spec.name!r} breaks on the metrics of step {step}: {type(error).__name__}: {error}; "
                "no metric is there in every step"
            ) from error


def check_schedule(
    spec: ScheduleSpec, options: Any = None, *, roles: Mapping[str, int] | None = None, steps: int = 300
) -> None:
    """Hold a schedule against everything that the trainer relies on.

    Checked: each step from the first on has a valid phase, in which at least one role learns, and every role that the
    schedule names exists; a phase is the same after a round trip through JSON, as it travels to the rollout workers and
    into the graph; asking twice gives the same phase; a run that is resumed from a checkpoint after any step, with the
    schedule's state as JSON, continues with the phases of a run that was not interrupted. Of a schedule that keeps
    statistics: it adds the columns that `ScheduleSpec.provides` names and changes nothing else in the turn table, its
    numbers of episodes and metrics are valid, and a resumed run adds the same columns.

    Args:
        spec: the registered schedule.
        options: its options; the defaults when None.
        roles: role to level of the worker that it is meant for; by default a planner above an executor.
        steps: trainer steps to go through.

    Raises:
        AssertionError: one sentence that names the schedule and what it broke.
    """
    chosen = spec.options() if options is None else options
    subject = _Subject(spec, chosen, dict(roles or ROLES), steps)
    for check in CHECKS:
        check(subject)


def check_phases(subject: _Subject) -> None:
    """Every phase is valid, survives JSON, and trains somebody."""
    schedule = subject.make()
    for step in range(1, subject.steps + 1):
        phase = subject.phase(schedule, step)
        _check_phase(subject, phase, step)
        if subject.phase(schedule, step) != phase:
            subject.fail(f"gives another phase when it is asked for step {step} again; `phase` must not count.")
        subject.observe(schedule, step)


def _check_phase(subject: _Subject, phase: Phase, step: int) -> None:
    where = f"in step {step}"
    if not isinstance(phase.name, str) or not phase.name or "/" in phase.name:
        subject.fail(f"has a phase named {phase.name!r} {where}; a name is a word for the log, without `/`.")
    for name in ("levels", "roles"):
        value = getattr(phase, name)
        if value is not None and not isinstance(value, frozenset):
            subject.fail(f"gives `{name}` as a {type(value).__name__} {where}; use a frozenset, or None for all.")
    unknown = sorted((phase.roles or frozenset()) - set(subject.roles))
    if unknown:
        subject.fail(f"names the role {unknown[0]!r} {where}; the roles here are {', '.join(subject.roles)}.")
    for level, weight in phase.weights:
        if not (math.isfinite(weight) and weight > 0):
            subject.fail(
                f"gives level {level} the loss weight {weight} {where}; leave the level out of `levels` instead."
            )
        if phase.levels is not None and level not in phase.levels:
            subject.fail(f"weighs level {level} {where}, which does not learn then.")
    try:
        again = Phase.from_dict(json.loads(json.dumps(phase.to_dict())))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"schedule {subject.spec.name!r} has a phase {where} that cannot be written as JSON: {error}"
        ) from error
    if again != phase:
        subject.fail(f"has a phase {where} that JSON changes: {phase} becomes {again}.")
    if not any(phase.learns(role, level) for role, level in subject.roles.items()):
        known = ", ".join(f"{role} (level {level})" for role, level in subject.roles.items())
        subject.fail(
            f"trains nothing {where} (phase {phase.name!r}): no role of {known} learns, and the run would end."
        )


def check_resuming(subject: _Subject) -> None:
    """A run that is resumed after any step goes on like one that was not interrupted."""
    places = sorted({1, 2, 3, subject.steps // 3, subject.steps // 2, subject.steps - 1} & set(range(1, subject.steps)))
    whole = subject.make()
    expected, states = [], {}
    for step in range(1, subject.steps + 1):
        expected.append(subject.phase(whole, step))
        subject.observe(whole, step)
        if step in places:
            states[step] = _state(subject, whole)
    for place, state in states.items():
        resumed = subject.make()
        resumed.load_state_dict(json.loads(state))
        for step in range(place + 1, subject.steps + 1):
            if subject.phase(resumed, step) != expected[step - 1]:
                subject.fail(
                    f"is in another phase at step {step} when a run is resumed after step {place}: make `phase` a "
                    "function of the step, or keep what it depends on in `state_dict` and `load_state_dict`."
                )
            subject.observe(resumed, step)


def _state(subject: _Subject, schedule: Schedule) -> str:
    try:
        return json.dumps(schedule.state_dict())
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"schedule {subject.spec.name!r} has a state that cannot be written as JSON: {error}"
        ) from error


def check_statistics(subject: _Subject) -> None:
    """What it adds to the turn table is what it promises, and survives a checkpoint after any step."""
    whole = subject.make()
    expected, states = [], [_state(subject, whole)]
    for step in range(1, _TABLES + 1):
        expected.append(_statistics(subject, whole, step))
        states.append(_state(subject, whole))
    for place, state in enumerate(states):
        resumed = subject.make()
        resumed.load_state_dict(json.loads(state))
        for step in range(place + 1, _TABLES + 1):
            found = _statistics(subject, resumed, step)
            if any(not np.array_equal(found[name], column) for name, column in expected[step - 1].items()):
                subject.fail(
                    f"adds other columns in step {step} when a run is resumed after step {place}: keep the statistics "
                    "in `state_dict` and `load_state_dict`."
                )


def _statistics(subject: _Subject, schedule: Schedule, step: int) -> dict[str, NDArray[Any]]:
    """One step of the trainer on a random table of two levels; returns the columns that it got."""
    table = random_table(step, groups=4)
    promised = subject.spec.fills(subject.options)
    for name in promised:
        table.turns.pop(name, None)
    before = copy.deepcopy(table)
    tasks = np.unique(table["episodes.task"]).tolist()
    counts = schedule.episodes(step, tasks, 4)
    if counts is not None and (len(counts) != len(tasks) or not all(isinstance(n, int) and n > 0 for n in counts)):
        subject.fail(f"gives the episodes {counts} for {len(tasks)} tasks; name a number of at least 1 for each.")
    metrics = schedule.table_ready(table, step)
    bad = [name for name, value in metrics.items() if not (name.startswith("hier/") and math.isfinite(value))]
    if bad:
        subject.fail(f"returns the metric {bad[0]!r} = {metrics[bad[0]]}; a metric is a finite number below `hier/`.")
    added = set(table.columns()) - set(before.columns())
    if added != set(promised):
        subject.fail(f"adds the columns {sorted(added)} and provides {sorted(promised)}.")
    for name in before.columns():
        if not np.array_equal(table[name], before[name], equal_nan=np.asarray(before[name]).dtype.kind == "f"):
            subject.fail(f"changes the column {name!r} of the turn table.")
    for name in promised:
        column = np.asarray(table[name])
        if column.shape != (len(table),) or not np.isfinite(column).all():
            subject.fail(f"fills the column {name!r} with anything but one finite number a turn.")
    if schedule.reads_losses:
        group = np.asarray(table["episodes.group"], np.int64)
        schedule.learned(group, np.random.default_rng(step).normal(size=group.size), step)
    return {name: np.array(table[name]) for name in promised}


CHECKS = (check_phases, check_resuming, check_statistics)
