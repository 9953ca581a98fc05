"""Which tasks the asynchronous trainers take and drop: verl's own classes against the lab's queue, and ours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.clocked_trainers import OURS, VERL, play
from verl_hier.lab.durations import Queue, Rules

STEPS = 25
RULES = {
    "verl's defaults": Rules(True),
    "dropped soon": Rules(True, threshold=2, ahead=2.5),
    "waited for": Rules(True, strategy="wait", threshold=3, ahead=1.5),
    "never stale": Rules(True, threshold=None, ahead=3),
    "divided steps": Rules(False, batches=4, threshold=3),
    "divided steps that wait": Rules(False, batches=2, strategy="wait", threshold=4, ahead=2),
}


def durations(seed: int):
    """Whole seconds, of which a tenth are long."""
    drawn = np.random.default_rng(seed)
    while True:
        yield float(drawn.integers(1, 5) if drawn.random() > 0.1 else drawn.integers(5, 40))


def small(rules: Rules) -> Rules:
    return replace(rules, tasks=8, poll_s=0.5, train_s=2.0)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("colocated", [True, False], ids=["colocated", "separate"])
def test_the_queue_of_the_lab_is_that_of_verl(name, colocated, monkeypatch):
    rules = small(replace(RULES[name], colocated=colocated))
    rules = replace(rules, batches=1) if colocated else rules
    mode = "colocate_async" if colocated else "separate_async"
    for seed in range(3):
        ours = Queue(rules, durations(seed)).play(STEPS)
        for classes in (VERL, OURS):
            theirs, _ = play(classes[mode], rules, durations(seed), STEPS, monkeypatch)
            assert theirs.trained == [sorted(batch) for batch in ours.trained]
            assert theirs.steps == ours.steps
            assert sorted(theirs.dropped) == sorted(ours.dropped)
            assert (theirs.launched, theirs.updated) == (ours.launched, ours.updated)
            assert theirs.seconds == ours.seconds
        if rules.strategy == "drop" and rules.threshold in (2, 3):
            assert ours.dropped


@pytest.mark.parametrize("mode", OURS)
def test_the_metrics_tell_who_is_left_out(mode, monkeypatch):
    rules = small(Rules(mode == "colocate_async", threshold=2, ahead=2.5))
    for order, left_out in ((None, True), (0, False)):
        found, metrics = play(
            OURS[mode],
            replace(rules, threshold=None if order == 0 else 2, late_steps=order),
            durations(0),
            STEPS,
            monkeypatch,
        )
        dropped = [step["hier/durations/dropped_s"] for step in metrics if "hier/durations/dropped_s" in step]
        assert bool(dropped) == bool(found.dropped) == left_out
        ratio, trained = metrics[-1]["hier/durations/ratio"], [step["hier/durations/trained_s"] for step in metrics]
        assert not dropped or min(dropped) > np.mean(trained)
        assert ratio < 0.8 if left_out else 0.9 < ratio < 1.1
        assert all(step["hier/durations/left_s"] > 0 for step in metrics)


@pytest.mark.parametrize("late_steps", [0, 1, 3])
@pytest.mark.parametrize("mode", OURS)
def test_a_task_comes_no_later_than_the_order_allows(mode, late_steps, monkeypatch):
    rules = small(Rules(mode == "colocate_async", batches=1 if mode == "colocate_async" else 4, ahead=1.5))
    rules = replace(rules, late_steps=late_steps)
    for seed in range(3):
        found, metrics = play(OURS[mode], rules, durations(seed), STEPS, monkeypatch)
        ours = Queue(rules, durations(seed)).play(STEPS)
        assert found.trained == [sorted(batch) for batch in ours.trained] and not found.dropped
        assert found.seconds == ours.seconds
        trained = [task for batch in ours.trained for task in batch]
        assert late_steps or trained == list(range(STEPS * rules.tasks))
        worst = 0
        for place, task in enumerate(trained):
            overtaken = sum(other > task for other in trained[:place])
            worst = max(worst, overtaken)
            assert overtaken <= late_steps * rules.tasks
        assert max(step["hier/durations/overtaken_max"] for step in metrics) == worst
        assert bool(worst) == bool(late_steps)
        waited = [step.get("hier/durations/waited_total_s", 0.0) for step in metrics]
        assert 0 < sum(waited) < found.seconds
        assert max(ours.spans) <= 2 + late_steps + 1
        assert max(step["hier/durations/steps_max"] for step in metrics) == max(ours.spans) - 1
