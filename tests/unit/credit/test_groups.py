"""The group kernel against its slow twin, and what must hold for any batch."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures import reference_kernels
from verl_hier.credit import group_advantage, group_ids, group_mean, group_median, group_sum, singletons
from verl_hier.credit.groups import number
from verl_hier.errors import CreditError

quick = settings(max_examples=60, deadline=None)
scores = st.sampled_from([0.0, 1.0, 0.5, -0.25, 3.0, 0.1])
rows = st.lists(st.tuples(scores, st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=14)


@quick
@given(
    rows,
    st.sampled_from(["mean", "median", "leave_one_out", "none"]),
    st.sampled_from(["sample", "population", "mad", "none"]),
    st.sampled_from(["raw", "zero"]),
    st.booleans(),
    st.booleans(),
)
@example([(0.1, 0, 0, False)] * 3, "none", "sample", "raw", False, False)
def test_kernel_equals_its_twin(rows, centre, scale, singleton, weighted, masked):
    if scale == "mad" and centre == "leave_one_out":
        centre = "median"
    data, keys, weight, keep = (np.array(column) for column in zip(*rows, strict=True))
    options = {
        "weights": weight.astype(float) if weighted else None,
        "where": keep if masked else None,
        "centre": centre,
        "scale": scale,
        "singleton": singleton,
    }
    ours = group_advantage(data, group_ids(keys), eps=1e-3, **options)
    theirs = reference_kernels.group_advantage(data, keys, eps=1e-3, **options)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@quick
@given(rows)
def test_groups_sum_to_zero(rows):
    data, keys, _, _ = (np.array(column) for column in zip(*rows, strict=True))
    ids = group_ids(keys)
    for scale in ("sample", "population", "none"):
        values = group_advantage(data, ids, scale=scale, singleton="zero")
        np.testing.assert_allclose(group_sum(values, ids), 0, atol=1e-9)


@quick
@given(rows, st.randoms(use_true_random=False))
def test_permutation_moves_the_rows_and_nothing_else(rows, random):
    data, keys, other, _ = (np.array(column) for column in zip(*rows, strict=True))
    order = list(range(len(data)))
    random.shuffle(order)
    ids = group_ids(keys, other)
    assert (group_ids(keys[order], other[order]) == ids[order]).all()
    for centre in ("mean", "median", "leave_one_out"):
        before = group_advantage(data, ids, centre=centre)
        after = group_advantage(data[order], ids[order], centre=centre)
        np.testing.assert_allclose(before[order], after, rtol=1e-12, atol=1e-12)


@quick
@given(rows, st.floats(-5, 5), st.floats(0.1, 5))
def test_shift_and_scale_do_not_matter_to_a_z_score(rows, shift, factor):
    data, keys, _, _ = (np.array(column) for column in zip(*rows, strict=True))
    ids = group_ids(keys)
    options = {"eps": 0.0, "singleton": "zero"}
    moved = group_advantage(shift + factor * data, ids, **options)
    np.testing.assert_allclose(moved, group_advantage(data, ids, **options), rtol=1e-6, atol=1e-6)


def test_shared_votes_count_as_one_row():
    """Three rows that share a vote are the row that they repeat."""
    data, keys = np.array([1.0, 1.0, 1.0, 0.0, 0.5]), np.zeros(5, np.int64)
    shared = group_advantage(data, keys, weights=[1 / 3, 1 / 3, 1 / 3, 1, 1])
    plain = group_advantage(data[2:], keys[2:])
    np.testing.assert_allclose(shared[2:], plain, rtol=1e-12)


def test_a_row_without_a_vote_is_still_compared():
    data, keys = np.array([1.0, 0.0, 7.0]), np.zeros(3, np.int64)
    values = group_advantage(data, keys, weights=[1, 1, 0], eps=0.0)
    np.testing.assert_allclose(values, [0.70710678, -0.70710678, 9.19238816])


@pytest.mark.parametrize(("singleton", "expected"), [("raw", 3.0), ("zero", 0.0), ("drop", 0.0)])
def test_a_group_of_one(singleton, expected):
    ids = group_ids([0, 0, 1])
    values = group_advantage([1.0, 0.0, 3.0], ids, singleton=singleton, scale="none")
    assert values[2] == expected
    assert singletons(ids).tolist() == [False, False, True]
    assert singletons(ids, where=[True, False, True]).all()


def test_zero_variance_rules():
    """Most rewards are equal: the deviation vanishes, and dividing by eps alone gives the published hazard."""
    data, keys = np.array([0.0, 0, 1, 0, 1]), np.zeros(5, np.int64)
    hazard = group_advantage(data, keys, centre="median", scale="mad", eps=1e-3, zero_variance="divide")
    cured = group_advantage(data, keys, centre="median", scale="mad", eps=1e-3, zero_variance="std")
    assert hazard.max() == pytest.approx(1000)
    np.testing.assert_allclose(cured, group_advantage(data, keys, eps=1e-3))
    flat = group_advantage([0.1, 0.1, 0.1], np.zeros(3, np.int64), eps=0.0)
    assert (flat == 0).all()


def test_medians_are_lower_and_know_their_row():
    median, row = group_median([3.0, 1.0, 2.0, 4.0, 9.0], np.array([0, 0, 0, 0, 1]))
    assert median.tolist() == [2.0, 9.0] and row.tolist() == [2, 4]
    median, _ = group_median([3.0, 1.0, 2.0], np.zeros(3, np.int64), [0.0, 1.0, 0.0])
    assert median.tolist() == [1.0]


def test_keys_of_any_columns():
    texts, numbers, far = np.array(["b", "a", "b"]), np.array([1, 1, 2]), np.array([10**12, 5, 10**12])
    assert group_ids(texts).tolist() == [1, 0, 1]
    assert group_ids(texts, numbers).tolist() == [1, 0, 2]
    assert group_ids(far, texts).tolist() == [1, 0, 1]
    assert group_ids(np.array([("a", 1), "x", ("a", 1)], dtype=object)).tolist() == [0, 1, 0]
    assert number(np.zeros(0))[1] == 0
    assert group_mean([1.0, 3.0], np.array([1, 1])).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_must_be_finite_where_they_count(bad):
    with pytest.raises(CreditError, match="row 1 is"):
        group_advantage([1.0, bad, 0.0], np.zeros(3, np.int64))
    values = group_advantage([1.0, bad, 0.0], np.zeros(3, np.int64), where=[True, False, True])
    assert np.isfinite(values).all() and values[1] == 0


def test_shapes_and_weights_are_checked():
    ids = np.zeros(2, np.int64)
    with pytest.raises(CreditError, match="shape"):
        group_advantage([1.0], ids)
    with pytest.raises(CreditError, match="at least 0"):
        group_advantage([1.0, 2.0], ids, weights=[1, -1])
    with pytest.raises(CreditError, match="shape of the keys"):
        group_advantage([1.0, 2.0], ids, weights=[1.0])
    with pytest.raises(CreditError, match="different lengths"):
        group_ids([1, 2], [1])
    with pytest.raises(CreditError, match="at least one column"):
        group_ids()
    with pytest.raises(CreditError, match="one dimension"):
        group_ids([[1, 2]])
    assert group_advantage([], np.zeros(0, np.int64)).shape == (0,)
