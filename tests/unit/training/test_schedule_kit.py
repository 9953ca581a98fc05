"""The kit for schedules passes on every built-in one and refuses each broken one with its sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import ScheduleSpec
from verl_hier.testing import check_schedule
from verl_hier.training.schedule import Phase, Schedule

SPECS: dict[str, Any] = PluginHost.load({"builtin": True}).specs("schedule")
VARIANTS = [
    ("agents", {"period": 3, "order": "reverse", "rounds": 2}),
    ("ccpo_history", {"roles": ("planner",), "least": 1, "decay": 0.5}),
    ("alternating", {"period": 3, "levels": (1, 0, 1)}),
    ("bottom_up", {"steps": (7,), "roles": ("executor", "planner")}),
    ("epo", {"compare": "turn", "steps": None}),
    ("gdro", {"arms": (2, 4), "history": 2, "hysteresis": 0.1, "score": "ema", "standardise": True}),
    ("joint", {"roles": ("planner",)}),
    ("rae", {"score": "role", "decay": 0.5}),
    ("stagewise", {"mode": "hard", "period": 4}),
]


@pytest.mark.parametrize("name", SPECS)
def test_every_builtin_passes(name: str) -> None:
    check_schedule(SPECS[name])


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_variants_pass(name: str, options: dict[str, Any]) -> None:
    check_schedule(SPECS[name], SPECS[name].options(**options))


def test_a_worker_of_one_level_is_no_place_for_alternation() -> None:
    with pytest.raises(AssertionError, match=r"'alternating' trains nothing in step 2 .* no role of agent"):
        check_schedule(SPECS["alternating"], roles={"agent": 0})


@dataclass
class Says(Schedule):
    """A schedule with one phase for ever."""

    answer: Any

    def phase(self, step: int) -> Any:
        return self.answer


class Counts(Schedule):
    def __init__(self) -> None:
        self.asked = 0

    def phase(self, step: int) -> Phase:
        self.asked += 1
        return Phase("odd" if self.asked % 2 else "even")


class Reacts(Schedule):
    """Switches for good once the success is above 0.9."""

    def __init__(self) -> None:
        self.switched = False

    def phase(self, step: int) -> Phase:
        return Phase("late" if self.switched else "early")

    def observe(self, step: int, metrics: dict[str, Any]) -> None:
        self.switched |= metrics.get("hier/episodes/success", 0.0) > 0.9


class Remembers(Reacts):
    def state_dict(self) -> dict[str, Any]:
        return {"switched": self.switched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.switched = state["switched"]


class Greedy(Reacts):
    def observe(self, step: int, metrics: dict[str, Any]) -> None:
        self.switched |= metrics["hier/episodes/success"] > 0.9


class Binary(Reacts):
    def state_dict(self) -> dict[str, Any]:
        return {"switched": {self.switched}}


class FromZero(Schedule):
    def phase(self, step: int) -> Phase:
        return [Phase("first")][step]


class Ends(Schedule):
    """Trains nobody from step 100 on."""

    def phase(self, step: int) -> Phase:
        return Phase("on") if step < 100 else Phase("off", levels=frozenset())


def test_a_schedule_that_reacts_passes_when_it_keeps_its_state() -> None:
    check_schedule(ScheduleSpec("mine", lambda options: Remembers()))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Reacts, r"is in another phase at step \d+ when a run is resumed after step \d+"),
        (Greedy, "breaks on the metrics of step 5: KeyError"),
        (Binary, "has a state that cannot be written as JSON"),
        (Counts, "gives another phase when it is asked for step 1 again"),
        (FromZero, "breaks in step 1: IndexError"),
        (Ends, r"trains nothing in step 100 \(phase 'off'\): no role of planner \(level 0\), executor"),
        (dict, "has a factory that makes no Schedule but a dict"),
        (lambda: Says(None), "gives no Phase for step 1 but a NoneType"),
        (lambda: Says(Phase("")), "has a phase named '' in step 1"),
        (lambda: Says(Phase("a/b")), "has a phase named 'a/b' in step 1"),
        (lambda: Says(Phase("x", levels={0})), "gives `levels` as a set in step 1"),  # type: ignore[arg-type]
        (lambda: Says(Phase("x", roles=frozenset({"plannr"}))), "names the role 'plannr' in step 1"),
        (lambda: Says(Phase("x", levels=frozenset({7}))), "trains nothing in step 1"),
        (lambda: Says(Phase("x", weights=((0, 0.0),))), "gives level 0 the loss weight 0.0 in step 1"),
        (lambda: Says(Phase("x", weights=((0, math.nan),))), "gives level 0 the loss weight nan"),
        (lambda: Says(Phase("x", levels=frozenset({0}), weights=((1, 0.5),))), "weighs level 1 in step 1"),
        (lambda: Says(Phase("x", weights=[(0, 0.5)])), "has a phase in step 1 that JSON changes"),  # type: ignore[arg-type]
    ],
)
def test_each_broken_schedule_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=f"schedule 'mine' {sentence}"):
        check_schedule(ScheduleSpec("mine", lambda options: make()))


class Averages(Says):
    """Keeps a mean that crosses steps, and does one thing wrong."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(Phase("joint"))
        self.fault = fault
        self.mean = 0.0

    def episodes(self, step: int, tasks: Any, n: int) -> list[int] | None:
        return [n] if self.fault == "episodes" else None

    def table_ready(self, table: Any, step: int) -> dict[str, float]:
        table.turns["mean" if self.fault != "name" else "means"] = np.full(len(table), self.mean)
        if self.fault == "reward":
            table.turns["reward"] = table["reward"] + 1
        if self.fault == "nan":
            table.turns["mean"][0] = np.nan
        self.mean += float(table["reward"].sum())
        return {"mean" if self.fault == "metric" else "hier/mean": self.mean}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.fault == "state" else {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state.get("mean", 0.0)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("name", r"adds the columns \['means'\] and provides \['mean'\]"),
        ("reward", "changes the column 'reward'"),
        ("nan", "anything but one finite number a turn"),
        ("metric", "returns the metric 'mean'"),
        ("state", "adds other columns in step 2 when a run is resumed after step 1"),
        ("episodes", "a number of at least 1 for each"),
    ],
)
def test_faults_of_schedules_with_statistics_are_named(fault: str, told: str) -> None:
    spec = ScheduleSpec("probe", lambda options: Averages(fault), provides=("mean",))
    with pytest.raises(AssertionError, match=f"'probe' .*{told}"):
        check_schedule(spec, steps=3)
    check_schedule(ScheduleSpec("probe", lambda options: Averages(), provides=("mean",)), steps=3)
