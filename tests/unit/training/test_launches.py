"""The order of launches: who may overtake whom, and what is measured of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.training.launches import Durations, LaunchOrder


@given(
    st.lists(st.integers(1, 30), min_size=24, max_size=24),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_nobody_is_overtaken_by_more_than_the_order_allows(durations, tasks, most):
    """A queue of eight tasks, in which one unit of time goes by where no batch can be taken."""
    order, out, trained, launched, now = LaunchOrder(most), {}, [], 0, 0
    while len(trained) + tasks <= len(durations):
        while len(out) < 8 and launched < len(durations):
            out[launched] = now + durations[launched]
            launched += 1
        finished = {task for task, end in out.items() if end <= now}
        chosen = order.choose(finished, out.keys() - finished, tasks)
        if chosen is None:
            now += 1
            continue
        assert chosen == sorted(finished)[:tasks]
        counted = order.take(chosen, out.keys() - finished)
        assert counted == max(sum(other > task for other in trained) for task in chosen)
        assert counted <= most
        trained += chosen
        for task in chosen:
            del out[task]
    assert most or trained == sorted(trained) == list(range(len(trained)))


def test_without_an_order_nothing_is_waited_for():
    order = LaunchOrder()
    assert order.choose([5, 3, 9], [0, 1], 2) == [3, 5]
    assert order.choose([5], [], 2) is None
    assert order.take([3, 5], [0, 4]) == 0
    assert order.choose([9], [0, 4], 1) == [9]
    assert order.take([9], [0, 4]) == 0
    assert (order.take([4], [0]), order.take([0], [])) == (2, 4)


def test_a_dropped_task_leaves_nothing_behind():
    order = LaunchOrder(1)
    order.take([1], [0])
    assert order.choose([2], [0], 1) is None
    order.drop([0])
    assert order.choose([2], [], 1) == [2]
    assert order.choose([2], [0], 1) == [2], "the number is free again"


def test_durations_of_what_is_trained_are_compared_with_all():
    durations = Durations()
    assert durations.metrics([1.0, 3.0], []) == {"hier/durations/trained_s": 2.0, "hier/durations/ratio": 1.0}
    durations.drop([10.0, 20.0])
    found = durations.metrics([2.0], [5.0], [7.0])
    assert found == {
        "hier/durations/trained_s": 2.0,
        "hier/durations/left_s": 6.0,
        "hier/durations/dropped_s": 15.0,
        "hier/durations/ratio": pytest.approx(2.0 / (48 / 7)),
    }
    # What has just begun says nothing yet: it counts as the mean of the others.
    assert Durations().metrics([2.0], [4.0], [0.1, 9.0])["hier/durations/ratio"] == pytest.approx(2 / ((6 + 3 + 9) / 4))
    assert "hier/durations/dropped_s" not in durations.metrics([2.0], [])
    assert "hier/durations/ratio" not in Durations().metrics([], [1.0])
