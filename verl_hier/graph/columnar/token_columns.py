"""The token columns of a turn table, each made when it is asked for.

Shapes: M nodes, T turns of the table, N action tokens of all turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.graph.columnar.layout import Columns
from verl_hier.graph.paths import Ints
from verl_hier.graph.turn_table import Array, LazyColumns


def token_columns(columns: Columns, kept: pa.Table, chosen: Ints, count: Ints) -> LazyColumns:
    """The columns `turn` and `logprob`, then `entropy` and masks in the order in which nodes bring them up.

    `logprob` and `entropy` are left out where the heavy columns of which they are made cannot be had.

    Args:
        columns: of the tasks.
        kept: light columns of the turns.
        chosen: (T,) nodes that are turns.
        count: (T,) action tokens of each turn.
    """
    given = kept["has_entropy"].to_numpy()
    makers: dict[str, tuple[int, Callable[[], Array]]] = {}
    if given.any() and "entropy" in columns.tokens:
        makers["entropy"] = int(given.argmax()), partial(_numbers, columns, "entropy", chosen, count, 0.0)
    makers |= _masks(kept, count)
    found: dict[str, Callable[[], Array]] = {"turn": lambda: np.repeat(np.arange(len(count)), count)}
    if "logprobs" in columns.tokens:
        found["logprob"] = partial(_numbers, columns, "logprobs", chosen, count, np.nan)
    ordered = sorted(makers.items(), key=lambda item: item[1][0])
    return LazyColumns({**found, **{name: make for name, (_, make) in ordered}})


def _numbers(columns: Columns, name: str, chosen: Ints, count: Ints, missing: float) -> Array:
    """(N,) the numbers of each token, `missing` for turns without them."""
    column = columns.heavy(name)
    if len(chosen) < len(column):
        column = column.take(pa.array(chosen))
    known = np.concatenate([pc.list_value_length(chunk).to_numpy() > 0 for chunk in column.chunks])
    # The arrays are copied, because those of Arrow cannot be written to.
    values = np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks])
    if known.all():
        return values
    found = np.full(int(count.sum()), missing)
    found[np.repeat(known, count)] = values
    return found


def _masks(kept: pa.Table, count: Ints) -> dict[str, tuple[int, Callable[[], Array]]]:
    """Name to the first turn that has the mask, and what makes its column."""
    lists = kept["masks"].combine_chunks()
    entries = lists.flatten()
    owner = np.repeat(np.arange(len(kept)), _lengths(lists))
    spans = entries.field("value")
    entry = np.repeat(np.arange(len(entries)), _lengths(spans))
    ends = [spans.flatten().field(name).to_numpy() for name in ("start", "stop")]
    first = (np.cumsum(count) - count)[owner[entry]]
    names = entries.field("name").to_numpy(zero_copy_only=False)
    found: dict[str, tuple[int, Callable[[], Array]]] = {}
    for name in dict.fromkeys(names):
        mine = names[entry] == name
        begins, stops = (first[mine] + end[mine] for end in ends)
        found[name] = int(owner[names == name][0]), partial(_covered, begins, stops, int(count.sum()))
    return found


def _lengths(lists: pa.ListArray) -> NDArray[Any]:
    found: NDArray[Any] = pc.list_value_length(lists).to_numpy()
    return found


def _covered(begins: Ints, stops: Ints, size: int) -> Array:
    """(N,) whether a token lies within a span."""
    change = np.zeros(size + 1, np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, stops, -1)
    covered: Array = np.cumsum(change)[:-1] > 0
    return covered
