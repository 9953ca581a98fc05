"""A check takes no longer and no more memory for large numbers: nothing is as long as what it counts."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.errors import HierError
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.training.sharing import Sharing

SIZE = st.integers(1, 12)


@given(prompt=SIZE, response=SIZE, rows=SIZE, roots=SIZE)
def test_expected_sharing_is_what_counting_the_rows_gives(prompt: int, response: int, rows: int, roots: int) -> None:
    roots = min(roots, rows)
    shared = [0] + [prompt] * (roots - 1) + [prompt + response // 2] * (rows - roots)
    counted = Sharing.in_order(np.full(rows, prompt + response, np.int64), np.array(shared, np.int64))
    assert Sharing.expected(prompt, response, rows, roots) == counted


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.rollout.n=1000000000",
        "actor_rollout_ref.rollout.n=100000000000000000000",
        "data.train_batch_size=1000000000",
        "trainer.total_training_steps=1000000000000",
        "hier.rollout.max_turns=1000000000",
        "hier.rollout.environment_processes=1000000000",
        "actor_rollout_ref.rollout.val_kwargs.n=1000000000",
    ],
)
def test_a_huge_number_costs_nothing(override: str) -> None:
    tracemalloc.start()
    try:
        check_recipe(compose("grpo_sokoban", [override]))
    except HierError as error:
        assert "\n" not in str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 300 * 2**20
