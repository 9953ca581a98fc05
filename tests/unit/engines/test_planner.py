"""Micro-batches hold every row once, keep to their budget, and cut trees where it costs least."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.fixtures.trees_of_rows import Row, branching, prefixes
from verl_hier.engines.planner import Plan, Planner


def unique(rows: list[Row], part: list[int]) -> int:
    return len(prefixes([rows[i] for i in part]))


def groups(number: int, answers: int, prompt: int, response: int) -> list[Row]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 10**6, prompt) for _ in range(number)]
    rows = [np.concatenate([prompts[i % number], rng.integers(0, 10**6, response)]) for i in range(number * answers)]
    return [rows[i] for i in rng.permutation(len(rows))]


def rows_once(plan: Plan, rows: list[Row]) -> bool:
    return sorted(itertools.chain(*plan)) == list(range(len(rows)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("budget", [20, 40, 90, 10_000])
def test_each_row_is_in_one_micro_batch_within_the_budget(seed: int, budget: int) -> None:
    rows = branching(seed, leaves=20)
    planner = Planner(rows)
    plan = planner.by_tokens(budget)
    assert rows_once(plan, rows)
    assert all(unique(rows, part) <= budget or len(part) == 1 for part in plan)
    assert planner.forwarded(plan) == sum(unique(rows, part) for part in plan)
    assert len(plan) == 1 or budget < 10_000


def test_trees_are_kept_together() -> None:
    rows = groups(6, answers=8, prompt=100, response=10)
    planner = Planner(rows)
    plan = planner.by_tokens(400)
    assert planner.forwarded(plan) == 6 * (100 + 8 * 10), "no prompt is repeated"
    assert len(plan) == 3


def test_a_tree_above_the_budget_repeats_its_prefix() -> None:
    rows = groups(1, answers=8, prompt=100, response=10)
    planner = Planner(rows)
    plan = planner.by_tokens(140)
    assert len(plan) == 2
    assert planner.forwarded(plan) == 2 * 100 + 8 * 10


def test_a_row_above_the_budget_goes_alone() -> None:
    rows = [np.arange(50), np.arange(4), np.arange(60, 64)]
    plan = Planner(rows).by_tokens(10)
    assert [0] in plan
    assert rows_once(plan, rows)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_micro_batches_by_rows(size: int) -> None:
    rows = branching(2, leaves=20)
    plan = Planner(rows).by_rows(size)
    assert rows_once(plan, rows)
    assert all(len(part) <= size for part in plan)


def test_more_micro_batches_for_the_sake_of_other_ranks() -> None:
    rows = groups(3, answers=4, prompt=100, response=10)
    planner = Planner(rows)
    plan = planner.by_tokens(10_000)
    assert len(plan) == 1
    three = planner.divided(plan, 3)
    assert len(three) == 3
    assert rows_once(three, rows)
    assert planner.forwarded(three) == planner.forwarded(plan), "trees are parted first"
    assert len(planner.divided(plan, 12)) == 12
    assert planner.divided(three, 2) == three
    with pytest.raises(ValueError, match=r"12 row\(s\) cannot be divided into 13 micro-batches"):
        planner.divided(plan, 13)
