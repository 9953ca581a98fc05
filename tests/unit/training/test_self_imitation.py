"""Good episodes that the policy trains on again: what is kept, how old it may be, what it counts, and that a checkpoint
has all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from verl_hier.errors import FileError, RecipeError
from verl_hier.training.options import SelfImitationOptions
from verl_hier.training.self_imitation import (
    STATE_FILE,
    Baselines,
    GoodEpisodes,
    KeptRow,
    even_steps,
    loss_weights,
    weight_at,
)


def row(step: int, score: float, credit: float = 1.0, length: int = 3, weight: float = 1.0) -> KeptRow:
    """A row whose second token is an observation."""
    mask = np.ones(length, np.int8)
    mask[1:2] = 0
    one = np.ones(length, np.float32)
    tokens = np.arange(length, dtype=np.int32)
    return KeptRow(step, score, tokens[:2], tokens, mask, -one, credit * one, weight * one)


def good(*steps: Sequence[KeptRow], means: Sequence[float] = (0.0,), **options: Any) -> GoodEpisodes:
    """What is kept of some steps, each of whose groups have these means."""
    given_ = {"rows": 8, "fill": 0.0, "limit": 64, "max_age": 2, "warmup": 0, **options}
    found = GoodEpisodes(SelfImitationOptions(**given_))
    for number, rows in enumerate(steps, 1):
        found.add(rows, Baselines(number, np.array(means), np.full(len(means), 0.5)))
    return found


def test_rows_with_positive_credit_are_kept_and_train_once() -> None:
    kept = good([row(1, 1.0), row(1, 1.0, credit=-1.0), row(1, 1.0, credit=0.0)])
    assert len(kept.rows) == 1
    (due,) = kept.due(2, seed=0)
    assert due.step == 1 and not kept.rows and not kept.due(2, seed=0)


def test_an_observation_has_no_part_in_what_is_good() -> None:
    told = row(1, 1.0)
    credit = np.array([-1.0, 9.0, -1.0], np.float32)
    assert not KeptRow(**{**vars(told), "credit": credit}).good


def test_advantages_are_reckoned_anew_from_the_median_of_group_means() -> None:
    kept = good([row(1, 1.0), row(1, 0.4)], means=(0.0, 0.5, 0.9))
    assert kept.baseline == 0.5
    np.testing.assert_allclose(kept.advantages(kept.rows), [[0.5, 0.0, 0.5], [-0.1, 0.0, -0.1]], rtol=1e-6)
    assert [each.score for each in kept.due(2, seed=0)] == [1.0]
    scaled = good([row(1, 1.0)], means=(0.0, 0.5, 0.9), scale="std")
    np.testing.assert_allclose(scaled.advantages(scaled.rows)[0], [1.0, 0.0, 1.0], rtol=1e-5)
    own = good([row(1, 0.4, credit=0.3)], means=(0.9,), credit="kept")
    np.testing.assert_allclose(own.advantages(own.due(2, seed=0))[0], [0.3, 0.0, 0.3], rtol=1e-6)


def test_what_the_policy_has_outgrown_does_not_train() -> None:
    kept = good([row(1, 0.5)], means=(0.2,), max_age=9)
    kept.add([], Baselines(2, np.array([0.6, 0.6, 0.6]), np.zeros(3)))
    assert kept.due(3, seed=0) == []
    assert len(kept.rows) == 1


def test_groups_have_means_and_deviations_of_their_episodes() -> None:
    found = Baselines.of(3, [7, 7, 2, 2, 2, 5], [0.0, 1.0, 1.0, 1.0, 4.0, 2.0])
    np.testing.assert_allclose(found.means, [2.0, 2.0, 0.5])
    np.testing.assert_allclose(found.stds, [math.sqrt(3), 0.0, math.sqrt(0.5)])


def test_the_newest_groups_are_the_baseline() -> None:
    kept = good(baselines=3)
    for step, mean in enumerate((9.0, 9.0, 1.0, 1.0, 1.0), 1):
        kept.add([], Baselines(step, np.full(2, mean), np.zeros(2)))
    # As in the released code, whole steps leave before a new one is added.
    assert [each.step for each in kept.baselines] == [4, 5]


def test_too_few_good_rows_wait() -> None:
    rows = [row(1, 1.0), row(1, 1.0), row(1, -1.0)]
    waiting = good(rows, rows=4, fill=0.5)
    assert waiting.due(2, seed=0) == [] and len(waiting.rows) == 3
    enough = good([*rows, row(1, 2.0)], rows=4, fill=0.5)
    assert len(enough.due(2, seed=0)) == 3


def test_the_draw_depends_on_seed_and_step_alone() -> None:
    rows = [row(1, float(number)) for number in range(1, 33)]

    def drawn(step: int, seed: int) -> list[float]:
        return [each.score for each in good(rows, max_age=9).due(step, seed)]

    assert drawn(2, 0) == drawn(2, 0) and len(drawn(2, 0)) == 8
    assert drawn(2, 0) != drawn(2, 1) and drawn(2, 0) != drawn(3, 0)


steps_of_rows = some.lists(some.lists(some.floats(-1, 1), max_size=5), min_size=1, max_size=12)


@settings(deadline=None)
@given(steps_of_rows, some.integers(1, 4), some.integers(1, 12), some.integers(0, 3))
def test_no_row_trains_that_is_older_than_the_limit(
    steps: list[list[float]], max_age: int, limit: int, rows: int
) -> None:
    """Whatever arrives when, and also where nothing good arrives for a while."""
    kept = GoodEpisodes(SelfImitationOptions(rows=rows + 1, fill=0.0, limit=limit, max_age=max_age, warmup=0))
    for step, scores in enumerate(steps, 1):
        due = kept.due(step, seed=0)
        assert all(1 <= step - each.step <= max_age for each in due) and len(due) <= rows + 1
        assert all(step - each.step <= max_age for each in kept.rows)
        kept.add([row(step, score) for score in scores], Baselines(step, np.zeros(1), np.zeros(1)))
        assert len(kept.rows) <= limit


def test_the_weight_rises_as_half_a_cosine() -> None:
    options = SelfImitationOptions(weight=2.0, warmup=4)
    np.testing.assert_allclose(
        [weight_at(step, options) for step in range(6)], [0.0, 1 - math.sqrt(0.5), 1.0, 1 + math.sqrt(0.5), 2.0, 2.0]
    )
    assert weight_at(0, SelfImitationOptions(warmup=0)) == 1.0


def test_loss_weights_keep_their_ratios_and_have_the_wanted_mean() -> None:
    rows = [row(1, 1.0, weight=3.0), row(1, 1.0, length=5)]
    found = loss_weights(rows, 0.5)
    assert found[0][0] == pytest.approx(3 * found[1][0]) and found[0][1] == found[1][1] == 0
    assert sum(float(part.sum()) for part in found) == pytest.approx(0.5 * (2 + 4))
    assert [part.tolist() for part in loss_weights([row(1, 1.0, weight=0.0)], 1.0)] == [[0.0, 0.0, 0.0]]
    (small,) = loss_weights([row(1, 1.0, weight=0.25)], 0.5)
    assert float(small.sum()) == pytest.approx(0.5 * 2), "however small the weights of the rows' own steps are"


@settings(deadline=None)
@given(some.integers(0, 200), some.floats(0.5, 64), some.integers(1, 8))
def test_optimiser_steps_are_equal_for_every_rank(rows: int, wanted: float, ranks: int) -> None:
    steps, size = even_steps(rows, wanted, ranks)
    assert size % ranks == 0 and steps >= 1 and steps * size <= rows
    assert rows - steps * size < steps * ranks
    if rows < ranks:
        assert size == 0
    elif wanted >= 1:
        assert abs(steps - rows / wanted) <= 0.5 or steps in (1, rows // ranks), "as near as whole steps come"
        assert steps == 1 or steps <= rows / wanted + 0.5


def test_a_checkpoint_has_every_bit(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = [row(1, 0.3), row(1, 0.1, length=7), row(1, 1 / 3, weight=generator.random())]
    kept = good(rows, [row(2, 0.7)], means=generator.random(3).tolist())
    kept.save(tmp_path)
    other = good()
    other.load(tmp_path)
    assert [vars(each).keys() for each in other.rows] == [vars(each).keys() for each in kept.rows]
    for mine, theirs in zip(kept.rows, other.rows, strict=True):
        for name, value in vars(mine).items():
            found = vars(theirs)[name]
            assert np.array_equal(found, value) and np.asarray(found).dtype == np.asarray(value).dtype, name
    for ours, read in zip(kept.baselines, other.baselines, strict=True):
        assert (
            ours.step == read.step and np.array_equal(ours.means, read.means) and np.array_equal(ours.stds, read.stds)
        )
    empty = good()
    empty.save(tmp_path / "empty")
    other.load(tmp_path / "empty")
    assert other.rows == [] and other.baselines == []


def test_a_checkpoint_without_or_with_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"hier\.self_imitation: the checkpoint .* is of a run without it"):
        good().load(tmp_path)
    kept = good([row(1, 1.0)])
    kept.save(tmp_path)
    whole = (tmp_path / STATE_FILE).read_bytes()
    for damaged in (b"", whole[:40], whole[: len(whole) // 2]):
        (tmp_path / STATE_FILE).write_bytes(damaged)
        with pytest.raises(FileError, match="is damaged"):
            good().load(tmp_path)


def test_options_that_never_train_are_refused() -> None:
    with pytest.raises(ValueError, match=r"limit must be above fill \* rows = 12"):
        SelfImitationOptions(rows=8, fill=1.5, limit=12)
    with pytest.raises(ValueError, match="scale is for recalibrated advantages"):
        SelfImitationOptions(credit="kept", scale="std")
