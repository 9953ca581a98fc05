"""Rows are divided among optimiser steps and ranks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.errors import RecipeError
from verl_hier.training.mini_batches import (
    arrange,
    divide,
    even_parts,
    left_over,
    padded_size,
    require_rows,
    whole_groups,
)
from verl_hier.training.options import MiniBatchOptions, UpdateOptions


def options(together: bool = False, **size: int) -> UpdateOptions:
    return UpdateOptions(MiniBatchOptions(**size), keep_tasks_together=together)


def alternate(rows: list[int], ranks: int) -> list[list[int]]:
    return [rows[rank::ranks] for rank in range(ranks)]


@given(st.integers(1, 200), st.integers(1, 30))
def test_even_parts_hold_every_row_once_and_differ_by_one_at_most(rows, number):
    parts = even_parts(rows, number)
    assert [row for part in parts for row in part] == list(range(rows))
    sizes = [len(part) for part in parts]
    assert len(parts) == min(rows, number) and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("size", "steps"),
    [({"rows": 64}, 4), ({"rows": 300}, 1), ({"steps": 5}, 5), ({"prompts": 4}, 2), ({"prompts": 3}, 2)],
)
def test_the_number_of_steps_is_what_the_recipe_says(size, steps):
    tasks = [f"task{row // 25}" for row in range(200)]
    parts = divide(options(**size), tasks, prompts=8)
    assert len(parts) == steps
    assert all(len(part) <= size.get("rows", 200) for part in parts)


def test_only_rows_make_the_number_of_steps_depend_on_the_rows():
    few, many = ["a"] * 40, ["a"] * 400
    assert len(divide(options(steps=4), few, 8)) == len(divide(options(steps=4), many, 8)) == 4
    assert len(divide(options(prompts=2), few, 8)) == len(divide(options(prompts=2), many, 8)) == 4
    assert (len(divide(options(rows=40), few, 8)), len(divide(options(rows=40), many, 8))) == (1, 10)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from([{"rows": 10}, {"rows": 3}, {"steps": 3}, {"prompts": 2}]),
)
def test_tasks_stay_together(rows_of_task, size):
    tasks = [f"task{task}" for task, rows in enumerate(rows_of_task) for _ in range(rows)]
    parts = divide(options(together=True, **size), tasks, prompts=len(rows_of_task))
    assert sorted(row for part in parts for row in part) == list(range(len(tasks)))
    homes = [{tasks[row] for row in part} for part in parts]
    assert all(parts) and sum(map(len, homes)) == len(set(tasks))
    if "rows" in size:
        assert all(len(part) <= size["rows"] or len(home) == 1 for part, home in zip(parts, homes, strict=True))


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4))
def test_each_rank_gets_its_share_of_each_mini_batch(rows, steps, ranks):
    parts = even_parts(rows, steps)
    total = padded_size(parts, ranks)
    assert rows <= total < rows + len(parts) * ranks and total % (len(parts) * ranks) == 0
    order = arrange(parts, range(rows, total), ranks, alternate)
    assert sorted(order) == list(range(total))
    share, size = total // ranks, total // ranks // len(parts)
    for number, part in enumerate(parts):
        found = [order[rank * share + number * size + i] for rank in range(ranks) for i in range(size)]
        assert {row for row in found if row < rows} == set(part), "no mini-batch consists of padding alone"


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ({"rows": 4, "steps": 2}, "give one of prompts, rows and steps; got rows and steps"),
        ({"prompts": 0}, "prompts must be at least 1, got 0"),
    ],
)
def test_sizes_that_contradict_are_refused(size, reason):
    with pytest.raises(ValueError, match=reason):
        MiniBatchOptions(**size)


def test_fewer_rows_than_ranks_are_refused():
    require_rows(options(rows=4), 4)
    require_rows(options(steps=1), 4)
    with pytest.raises(
        RecipeError, match=r"^hier\.update\.mini_batch\.rows: 3 row\(s\) cannot be divided among 4 data-p"
    ):
        require_rows(options(rows=3), 4)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 4), st.data())
def test_groups_are_shared_out_equally(groups, ranks, data):
    names = [name or None for name in groups] + [None] * (-len(groups) % ranks)
    work = data.draw(st.lists(st.floats(0, 100), min_size=len(names), max_size=len(names)))
    shares = whole_groups(names, work, ranks)
    assert sorted(row for share in shares for row in share) == list(range(len(names)))
    assert {len(share) for share in shares} == {len(names) // ranks}


def test_groups_stay_whole_where_they_fit_and_work_is_equal():
    names = [name for name in "abcdef" for _ in range(4)]
    work = [{"a": 9.0, "b": 8.0, "c": 7.0, "d": 6.0, "e": 2.0, "f": 1.0}[name] for name in names]
    shares = whole_groups(names, work, 2)
    homes = [{names[row] for row in share} for share in shares]
    assert not homes[0] & homes[1]
    loads = [sum(work[row] for row in share) for share in shares]
    assert max(loads) - min(loads) <= 4 * 3.0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 3))
def test_groups_that_fill_the_ranks_exactly_are_never_cut(sizes, ranks):
    """Each rank could have one copy of every group; the last group of each fits its room exactly."""
    names = [(copy, number) for number, size in enumerate(sizes) for copy in range(ranks) for _ in range(size)]
    shares = whole_groups(names, [1.0] * len(names), ranks)
    homes = [{names[row] for row in share} for share in shares]
    assert sum(map(len, homes)) == len(set(names)), "a group is on two ranks"


def test_a_group_that_fits_nowhere_is_cut_once():
    shares = whole_groups(["a"] * 3 + ["b"] * 5 + [None] * 2, [1.0] * 10, 2)
    homes = [[name for name in "ab" if any(("a" if row < 3 else "b") == name and row < 8 for row in s)] for s in shares]
    assert sorted(homes) == [["a"], ["b"]], "padding fills up what groups leave"
    cut = whole_groups(["a"] * 4 + ["b"] * 2, [1.0] * 6, 2)
    assert sorted(sum(row < 4 for row in share) for share in cut) == [1, 3]


def test_a_size_is_given_where_one_of_the_three_is():
    assert not MiniBatchOptions().given
    for name in ("prompts", "rows", "steps"):
        assert MiniBatchOptions(**{name: 1}).given


@pytest.mark.parametrize(
    ("rows", "ranks", "gone"), [(17, 4, 1), (16, 4, 0), (23, 8, 7), (3, 4, 0), (0, 2, 0), (9, 1, 0)]
)
def test_what_is_left_out_leaves_a_multiple_of_the_ranks(rows, ranks, gone):
    """The number that is trained is the largest multiple of the ranks, and never nothing."""
    numbers = list(range(100, 100 + rows))
    found = left_over(numbers, ranks, random.Random(0))
    assert len(found) == gone and set(found) <= set(numbers) and found == sorted(set(found))
    assert found == left_over(numbers, ranks, random.Random(0))


def test_every_row_is_left_out_some_time():
    chance = random.Random(1)
    assert {row for _ in range(200) for row in left_over(range(10), 4, chance)} == set(range(10))
