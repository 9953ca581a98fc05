"""AT-GRPO's filter: the lowest groups of a step leave the loss, one group after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.testing import make_table
from verl_hier_plugins.estimators.at_grpo import ATGRPOOptions, advantage, kept_turns

turns = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30)


def slowly(keys, scores, share, by):
    """As the released `_assign_consistent_uids` does: groups sorted by their number, the first ones dropped."""
    members = {}
    for key, score in zip(keys, scores, strict=True):
        members.setdefault(key, []).append(score)
    numbers = {}
    for key, values in members.items():
        width = max(values) - min(values)
        spread = np.var(values) / width**2 if width else 0.0
        numbers[key] = 0.0 if len(values) < 2 else np.mean(values) if by == "mean" else spread
    dropped = sorted(numbers, key=numbers.get)[: int(len(numbers) * share)]
    return [float(key not in dropped) for key in keys]


@given(turns, st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from(["mean", "spread"]))
def test_the_lowest_groups_are_dropped(found, share, by):
    keys, scores = zip(*found, strict=True)
    table = make_table({"reward": list(scores), "turn": list(keys)})
    options = ATGRPOOptions(group_by=("turn",), drop_lowest=share, drop_by=by)
    assert kept_turns(table, options).tolist() == slowly(keys, scores, share, by)


def test_credit_of_the_others_stays():
    table = make_table({"reward": [0.0, 0.0, 1.0, 0.0], "turn": [0, 0, 1, 1]})
    every, half = (advantage(table, ATGRPOOptions(group_by=("turn",), drop_lowest=share)) for share in (0.0, 0.5))
    assert every.weight is None and half.weight.tolist() == [0, 0, 1, 1]
    assert half.values == pytest.approx(every.values) and half.values[2] > 0 > half.values[3]
