"""The packed tree is the set of prefixes of its rows, whatever the rows are."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.trees_of_rows import branching, prefixes
from verl_hier.engines.packing import Edges, Packed
from verl_hier.training.sharing import Sharing


def words(packed: Packed) -> list[tuple[int, ...]]:
    """The prefix that ends in each packed token, found by its parents."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(packed.tokens.tolist(), packed.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_prefix_is_there_once(seed: int) -> None:
    rows = branching(seed)
    packed = Packed.of(rows)
    nodes = words(packed)
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == prefixes(rows)
    for row, path in zip(rows, packed.paths, strict=True):
        assert packed.tokens[path].tolist() == row.tolist()
        assert packed.positions[path].tolist() == list(range(len(row)))


@pytest.mark.parametrize("seed", range(20))
def test_a_token_sees_its_prefixes_and_nothing_else(seed: int) -> None:
    packed = Packed.of(branching(seed))
    nodes = words(packed)
    for query, node in enumerate(nodes):
        for key, other in enumerate(nodes):
            sees = key <= query < packed.end[key]
            assert sees == (node[: len(other)] == other)


@pytest.mark.parametrize("seed", range(20))
def test_stretches_part_where_rows_do(seed: int) -> None:
    packed = Packed.of(branching(seed))
    visible = np.zeros((len(packed), len(packed)), bool)
    for begin, stop, end in packed.stretches():
        visible[begin:stop, begin:stop] |= np.tri(stop - begin, dtype=bool)
        visible[stop:end, begin:stop] = True
    query, key = np.ogrid[: len(packed), : len(packed)]
    assert (visible == ((key <= query) & (query < packed.end[key]))).all()
    children = np.bincount(packed.parents[packed.parents >= 0], minlength=len(packed))
    assert len(packed.stretches()) == 1 + sum(
        not (parent >= 0 and children[parent] == 1) for parent in packed.parents.tolist()[1:]
    ), "a stretch goes on as long as there is one way to go on"


@pytest.mark.parametrize("seed", range(20))
def test_steps_lead_from_each_token_to_the_next_of_its_row(seed: int) -> None:
    rows = branching(seed)
    packed = Packed.of(rows)
    prompts = [len(row) // 2 for row in rows]
    edges = Edges.of(packed, prompts)
    assert len(set(edges.children.tolist())) == len(edges.children)
    places = np.split(edges.places, np.cumsum([len(row) for row in rows])[:-1])
    for row, path, prompt, mine in zip(rows, packed.paths, prompts, places, strict=True):
        asked = range(max(prompt, 1) - 1, len(row) - 1)
        assert [place for place, step in enumerate(mine) if step < len(edges.children)] == list(asked)
        for place in asked:
            assert edges.children[mine[place]] == path[place + 1]
            assert edges.parents[mine[place]] == path[place]


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_tree(seed: int) -> None:
    rows = branching(seed)
    nodes = prefixes(rows)
    lengths = [len(row) for row in rows]
    assert Sharing.of(rows) == Sharing(
        tokens=sum(lengths),
        unique=len(nodes),
        pairs=sum(size * (size + 1) // 2 for size in lengths),
        visible=sum(map(len, nodes)),
    )


def test_one_row_and_unrelated_rows() -> None:
    single = Packed.of([np.array([3, 1, 2])])
    assert single.stretches() == [(0, 3, 3)]
    apart = Packed.of([np.array([3, 1]), np.array([2, 1, 3])])
    assert apart.stretches() == [(0, 3, 3), (3, 5, 5)]
    assert apart.parents.tolist() == [-1, 0, 1, -1, 3]


def test_a_row_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="a row without tokens cannot be trained; leave it out of the batch"):
        Packed.of([np.array([1]), np.array([], np.int64)])
