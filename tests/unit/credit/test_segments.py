"""Kernels along time against loops over time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import reference_kernels
from verl_hier.credit import chain_links, discounted_sum, gae, linear_scan, segment_starts, segment_sums, whiten
from verl_hier.credit.segments import shift_back
from verl_hier.errors import CreditError

quick = settings(max_examples=60, deadline=None)
number = st.floats(-3, 3, allow_nan=False, width=32)
chains = st.lists(st.tuples(number, number, st.booleans(), st.integers(0, 1)), min_size=1, max_size=20)


@quick
@given(chains, st.sampled_from([1.0, 0.95, 0.5, 0.0]))
def test_scan_equals_a_loop(rows, gamma):
    values, _, links, _ = (np.array(column) for column in zip(*rows, strict=True))
    np.testing.assert_allclose(
        linear_scan(values, gamma * links),
        reference_kernels.linear_scan(values, gamma * links),
        rtol=1e-9,
        atol=1e-9,
    )


def test_long_chains_and_no_chains():
    assert linear_scan(np.ones(1000), np.ones(1000))[0] == 1000
    assert linear_scan([], []).shape == (0,)
    assert linear_scan([2.0], [9.0]).tolist() == [2.0]


@quick
@given(chains, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.7]))
def test_gae_equals_a_loop(rows, gamma, lam):
    rewards, values, links, _ = (np.array(column) for column in zip(*rows, strict=True))
    links[-1] = False
    following = shift_back(values, links, 0.5)
    ours = gae(rewards, values, following, links, gamma, lam)
    np.testing.assert_allclose(
        ours, reference_kernels.gae(rewards, values, following, links, gamma, lam), rtol=1e-9, atol=1e-9
    )


@quick
@given(chains, st.sampled_from([1.0, 0.9]))
def test_lambda_one_without_values_is_the_discounted_return(rows, gamma):
    rewards, _, links, _ = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rewards))
    links[-1] = False
    np.testing.assert_allclose(
        gae(rewards, zeros, zeros, links, gamma, 1.0), discounted_sum(rewards, links, gamma), rtol=1e-9, atol=1e-12
    )


@quick
@given(chains, st.sampled_from([1.0, 0.9]))
def test_segment_sums_equal_a_loop(rows, gamma):
    values, _, _, segment = (np.array(column) for column in zip(*rows, strict=True))
    starts = segment_starts(np.zeros(len(values)), segment)
    sums, lengths = segment_sums(values, starts, gamma)
    expected, count = reference_kernels.segment_sums(values, starts, gamma)
    np.testing.assert_allclose(sums, expected, rtol=1e-9, atol=1e-9)
    assert lengths.tolist() == count.tolist()


def test_tail_is_discounted_once_and_read_at_ends():
    links = chain_links([0, 0, 1])
    assert links.tolist() == [True, False, False]
    assert discounted_sum([1.0, 0.0, 0.0], links, 0.5, [9.0, 4.0, 2.0]).tolist() == [2.0, 2.0, 1.0]


def test_empty_and_single_segments():
    sums, lengths = segment_sums(np.zeros(0), np.zeros(0, bool))
    assert sums.size == 0 and lengths.size == 0
    sums, lengths = segment_sums([3.0], np.array([True]))
    assert sums.tolist() == [3.0] and lengths.tolist() == [1]
    with pytest.raises(CreditError):
        chain_links()


@quick
@given(st.lists(st.tuples(number, st.integers(0, 3)), max_size=12))
def test_whitening_counts_weights_as_repeats(rows):
    values, weights = [r[0] for r in rows], [r[1] for r in rows]
    if len({v for v, w in rows if w}) == 1:
        return  # a deviation of rounding alone
    ours = whiten(values, np.array(weights, bool), weights=weights)
    np.testing.assert_allclose(ours, reference_kernels.whiten(values, weights), rtol=1e-6, atol=1e-6)
