"""What the queues of asynchronous trainers leave out: against closed forms, and with the order of launches."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest

from verl_hier.lab.durations import Queue
from verl_hier.lab.patience import AHEAD, TRAINERS, Patience, Tasks, select

WORLD = Patience()
RUNS, STEPS = 2, 120


def test_the_world_is_what_it_says():
    tasks = Tasks(WORLD, 0)
    list(islice(tasks.durations(), 40_000))
    for name, true in (("slow", WORLD.slow), ("value", WORLD.value), ("gradient", WORLD.gradient)):
        found = getattr(tasks, name)
        assert found.mean() == pytest.approx(true, abs=3 * found.std() / np.sqrt(len(found)))
    shift = 1e-5
    logit = np.log(WORLD.persist / (1 - WORLD.persist))
    above, below = (replace(WORLD, persist=1 / (1 + np.exp(-logit - each))) for each in (shift, -shift))
    assert WORLD.gradient == pytest.approx((above.value - below.value) / (2 * shift), rel=1e-6)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_bias_of_verls_default_is_that_of_the_tasks_that_nobody_persists_in(trainer):
    """With more sampled ahead all slow tasks are dropped: what is left has no gradient and the return of giving up."""
    found = select(WORLD, replace(TRAINERS[trainer], ahead=4), RUNS, STEPS)
    value, half = found.value
    assert found.slow == (0, 0) and found.gradient == pytest.approx((-1, 0))
    assert value == pytest.approx(WORLD.chance[0] / WORLD.value - 1, abs=1.5 * half)


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_order_removes_the_bias(trainer, ahead):
    rules = replace(TRAINERS[trainer], ahead=ahead)
    known = select(WORLD, rules, RUNS, STEPS)
    assert known.gradient[0] < -0.7
    ordered, late = (
        select(WORLD, replace(rules, threshold=None, late_steps=late_steps), RUNS, STEPS) for late_steps in (0, 4)
    )
    assert ordered.dropped == late.dropped == 0 < known.dropped
    for name in ("gradient", "value"):
        off, half = getattr(ordered, name)
        assert abs(off) < half
        # In order nobody is chosen, so that the rest is the chance of the draws, which are the same for all.
        lost, left = (getattr(each, name)[0] - off for each in (known, late))
        assert abs(left) < 0.05 * abs(lost), name


def test_in_order_every_task_is_trained_in_its_turn():
    for trainer in TRAINERS.values():
        rules = replace(trainer, threshold=None, late_steps=0)
        found = Queue(rules, cycle([1.0, 1.0, 30.0, 2.0])).play(10)
        assert [task for batch in found.trained for task in batch] == list(range(10 * rules.tasks))


def test_weights_cannot_bring_back_what_is_never_trained():
    few, none = (replace(TRAINERS["colocate_async"], ahead=ahead) for ahead in AHEAD)
    assert abs(select(WORLD, few, RUNS, STEPS, "shares").gradient[0]) < 0.4
    assert select(WORLD, none, RUNS, STEPS, "shares").gradient[0] == pytest.approx(-1)
    off, half = select(WORLD, replace(few, threshold=None), RUNS, STEPS, "seconds").gradient
    assert off > 5 * half, "weights by seconds count slow tasks too often where each is trained once"
