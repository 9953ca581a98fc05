"""How old rows are: the clock against sums of turns, and the ages against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from verl_hier.lab.durations import Rules
from verl_hier.lab.staleness import TimedTask, measure, play_timed
from verl_hier.lab.worlds import WORLDS


def timed(seconds: float) -> TimedTask:
    return TimedTask(seconds, np.array([[0.0, seconds], [seconds / 2, seconds]]), 2)


@pytest.mark.parametrize(("seconds", "ahead"), [(1.0, 1), (1.0, 3)])
def test_rows_of_fast_tasks_have_one_version_and_the_age_of_what_is_ahead(seconds, ahead):
    found = measure([timed(seconds)], Rules(colocated=False, batches=2, ahead=ahead, train_s=10.0), 30)
    assert found.spans == (1, 1) and found.age == found.oldest == ahead
    assert found.step_s == pytest.approx(10, rel=0.1) and found.task_s == seconds


def test_rows_of_slow_tasks_have_several():
    """A task takes 25 s and a step 10 s, and a task is trained three steps after its launch."""
    found = measure([timed(25.0)], Rules(colocated=False, ahead=3, train_s=10.0, threshold=None), 40)
    assert found.step_s == pytest.approx(10, rel=0.1)
    # Of the two rows one is launched with the task, and one 12.5 s later, a step later.
    assert found.spans == (2.5, 3) and found.age == 1 and found.oldest == 2.5


def test_the_clock_adds_what_follows_and_takes_the_longest_of_what_is_side_by_side():
    world = WORLDS["horizon"]
    alone, group = play_timed("independent", 1, 8), play_timed("independent", 4, 8)
    for task in alone:
        ((first, last),) = task.rows
        assert first == 0 and last == task.seconds
        assert 0.5 * task.turns <= task.seconds <= 1.5 * task.turns and task.turns <= world.horizon
    for task in group:
        assert len(task.rows) == 4 and task.seconds == task.rows[:, 1].max() and not task.rows[:, 0].any()
        assert task.seconds < 1.5 * world.horizon


def test_forks_begin_when_the_trunks_have_ended():
    (task,) = play_timed("tree_grpo", 6, 1)
    assert len(task.rows) == 6 and not task.rows[:, 0].any(), "every leaf has the whole path"
    ends = np.sort(task.rows[:, 1])
    assert ends[-1] == task.seconds
    flat = play_timed("independent", 4, 20)
    trees = play_timed("tree_grpo", 6, 20)
    assert np.mean([each.seconds for each in trees]) > 1.4 * np.mean([each.seconds for each in flat])
