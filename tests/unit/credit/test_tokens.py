"""From turns to tokens."""

import numpy as np
import pytest

from verl_hier.credit import share, token_chain
from verl_hier.credit.tokens import combine_levels, has_token, on_mask, spread, spread_rows
from verl_hier.errors import CreditError
from verl_hier.testing import make_table


def test_spread_gathers_and_leaves_the_rest_at_zero():
    index = np.array([[0, 0, -1], [2, 1, -1]])
    out = spread([1.0, 2.0, 3.0], index)
    assert out.dtype == np.float32 and out.tolist() == [[1, 1, 0], [3, 2, 0]]


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
def test_spread_rows_is_an_outer_product(dtype):
    mask = np.array([[1, 0], [1, 1]], dtype)
    assert spread_rows([2.0, -1.0], mask).tolist() == [[2, 0], [-1, -1]]


def test_credit_of_tokens():
    turn = np.array([0, 0, 1])
    assert on_mask([5.0, 7.0], turn, [True, False, True]).tolist() == [5, 0, 7]
    assert has_token(turn, [False, False, True], 3).tolist() == [False, True, False]


def test_level_combination():
    high, low = [1.0, 0.0, 2.0], [0.0, 4.0, 6.0]
    assert combine_levels([high, low], "sum").tolist() == [1, 4, 8]
    assert combine_levels([high, low], "sum", [1.0, 0.5]).tolist() == [1, 2, 5]
    assert combine_levels([high, low], "weighted", [1, 3]).tolist() == [1, 4, 5]
    assert combine_levels([high, low], "replace").tolist() == [1, 4, 6]
    assert combine_levels([high[:2], low[:2]], "disjoint").tolist() == [1, 4]
    with pytest.raises(CreditError, match="overlap"):
        combine_levels([high, low], "disjoint")


def tree():
    """One root turn shared by three leaves."""
    return make_table({"parent": [-1, 0, 0, 0], "reward": [0.0, 1.0, 0.0, 0.0]}, tokens={"turn": [0, 0, 1, 2, 3]})


def test_shared_turns():
    table = tree()
    steps = np.array([3.0, 3.0, 0.0, 0.0, -3.0, -3.0])
    assert share(table, steps, "repeat").values.tolist() == steps.tolist()
    assert share(table, steps, "average").values.tolist() == [0, 3, 0, -3]
    owner = share(table, steps, "owner")
    assert owner.values.tolist() == [3, 3, 0, -3] and owner.weight.tolist() == [3, 1, 1, 1]


def test_chains_do_not_care_how_turns_are_shared():
    table = make_table({"episode": [0, 0, 1], "reward": [0.0, 1.0, 2.0]})
    results = [share(table, [1.0, 2.0, 3.0], rule).values.tolist() for rule in ("repeat", "average", "owner")]
    assert results == [[1, 2, 3]] * 3


def test_token_chain_follows_the_owner():
    table = tree()
    order, links, last = token_chain(table)
    assert order.tolist() == [0, 1, 2, 3, 4]
    assert links.tolist() == [True, True, False, False, False]
    assert last.tolist() == [False, True, True, True, True]
