"""Tree kernels against walks over nodes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import reference_kernels
from verl_hier.credit import trees
from verl_hier.errors import CreditError

quick = settings(max_examples=60, deadline=None)


@st.composite
def forests(draw):
    count = draw(st.integers(1, 12))
    parent = [draw(st.integers(-1, node - 1)) for node in range(count)]
    values = [draw(st.sampled_from([0.0, 1.0, -0.5, 2.0])) for _ in range(count)]
    order = draw(st.permutations(range(count)))
    place = {node: row for row, node in enumerate(order)}
    shuffled = [place[parent[node]] if parent[node] >= 0 else -1 for node in order]
    return np.array(shuffled), np.array([values[node] for node in order])


@quick
@given(forests())
def test_everything_equals_a_walk(forest):
    parent, values = forest
    paths = [reference_kernels.up(parent, node) for node in range(len(parent))]
    under = reference_kernels.leaves(parent)
    assert trees.depths(parent).tolist() == [len(path) - 1 for path in paths]
    assert trees.subtree_sum(parent, trees.is_leaf(parent)).tolist() == [len(leaf) for leaf in under]
    np.testing.assert_allclose(trees.path_sum(parent, values), [sum(values[path]) for path in paths], atol=1e-12)
    np.testing.assert_allclose(
        trees.subtree_sum(parent, values), reference_kernels.subtree_sum(parent, values), atol=1e-12
    )
    np.testing.assert_allclose(
        trees.children_mean(parent, values), reference_kernels.children_mean(parent, values), atol=1e-12
    )
    first_nonzero = [next((values[node] for node in path if values[node]), 0.0) for path in paths]
    assert trees.inherit_zero(parent, values).tolist() == first_nonzero


@quick
@given(forests())
def test_differences_add_up_along_the_path(forest):
    parent, values = forest
    difference = trees.node_difference(parent, values, roots=0.25)
    np.testing.assert_allclose(trees.path_sum(parent, difference), values - 0.25, atol=1e-12)


def test_siblings_share_a_parent_or_a_task():
    parent, group = [-1, -1, 0, 0, 1, -1], [0, 0, 0, 0, 0, 1]
    ids = trees.sibling_ids(parent, group)
    assert ids[0] == ids[1] and ids[2] == ids[3]
    assert len(set(ids.tolist())) == 4
    # Of nodes with a parent the groups do not matter.
    first, second = trees.sibling_ids([-1, 0, 0], [0, 0, 1])[1:]
    assert first == second


def test_deep_chain():
    parent = np.arange(-1, 4999)
    assert trees.depths(parent)[-1] == 4999
    assert trees.subtree_sum(parent, trees.is_leaf(parent))[0] == 1


def test_bad_parents_are_refused():
    with pytest.raises(CreditError, match=r"-1\.\.1"):
        trees.depths([-1, 5])
    with pytest.raises(CreditError, match="cycle"):
        trees.depths([1, 0])
    assert trees.depths([]).size == 0 and trees.above([], []).size == 0


def test_runs_start_where_a_column_changes_on_the_way_up():
    rng = np.random.default_rng(4)
    for _ in range(40):
        size = int(rng.integers(1, 30))
        parent = np.array([rng.integers(-1, node) for node in range(size)])
        agent, segment = rng.integers(0, 2, size), rng.integers(0, 2, size)
        want = []
        for node in range(size):
            first = node
            while parent[first] >= 0 and (agent[parent[first]], segment[parent[first]]) == (agent[node], segment[node]):
                first = parent[first]
            want.append(first)
        assert trees.run_starts(parent, agent, segment).tolist() == want
