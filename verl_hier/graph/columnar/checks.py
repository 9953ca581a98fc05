"""What holds in the light columns of every task, so that a turn table can be made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.errors import GraphError
from verl_hier.graph.columnar.layout import EXTRAS, NULLABLE, Columns
from verl_hier.graph.invariants import MOST_STEPS, TOKEN_COLUMNS, subtrees
from verl_hier.graph.paths import Ints
from verl_hier.graph.turn_table import TURN_COLUMNS

_HIGHEST_LEVEL = 1000


def check_columns(columns: Columns) -> None:
    """Refuse light columns of which no turn table can be made; heavy columns are not looked at.

    Raises:
        GraphError: on the first thing that does not fit.
    """
    tables = {"tasks": columns.tasks, "episodes": columns.episodes, "nodes": columns.nodes}
    for kind, table in tables.items():
        for name in table.column_names:
            if name not in NULLABLE and table[name].null_count:
                raise GraphError(f"the column {name!r} of the {kind} has nulls.")
            if _floating(table[name]) or table[name].type.num_fields:
                _require_finite(f"{kind}.{name}", table[name], nan=name == "mean_entropy")
    sizes, counts = (columns.tasks[name].to_numpy() for name in ("nodes", "episodes"))
    for kind, found in (("nodes", sizes), ("episodes", counts)):
        if (found < 0).any() or found.sum() != len(tables[kind]):
            raise GraphError(f"there are {len(tables[kind])} {kind}, and the index says {found.sum()}.")
    _check_nodes(columns.nodes, sizes, counts)
    _check_episodes(columns, sizes, counts)
    _check_names(columns.nodes)


def _require_finite(where: str, column: pa.ChunkedArray, nan: bool) -> None:
    """Refuse numbers that are not finite, and nulls within lists."""
    for part in column.chunks:
        inside = _inside(part)
        if any(each.null_count for each in inside):
            raise GraphError(f"{where} has nulls in its lists.")
        for values in (each.to_numpy() for each in (part, *inside) if _floating(each)):
            if (np.isinf(values) if nan else ~np.isfinite(values)).any():
                raise GraphError(f"{where} has a number that is not finite.")


def _floating(part: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pa.types.is_floating(part.type))


def _inside(part: pa.Array) -> list[pa.Array]:
    """Everything that the lists and structures of a column hold."""
    if pa.types.is_list(part.type):
        deeper = [part.flatten()]
    elif pa.types.is_struct(part.type):
        deeper = [part.field(number) for number in range(part.type.num_fields)]
    else:
        return []
    return [each for inner in deeper for each in (inner, *_inside(inner))]


def _check_nodes(nodes: pa.Table, sizes: Ints, counts: Ints) -> None:
    found: dict[str, NDArray[Any]] = {
        name: nodes[name].to_numpy().astype(np.int64)
        for name in ("parent", "context", "plan", "episode", "level", "turn", "segment", "n_action", "n_observation")
    }
    place = np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    for name, most in (("parent", place - 1), ("context", place - 1), ("plan", place)):
        _require((found[name] >= -1) & (found[name] <= most), "has a link that does not point back")
    _require(
        (found["episode"] >= 0) & (found["episode"] < np.repeat(counts, sizes)), "has an episode that is not there"
    )
    for name, most in (("level", np.full(len(nodes), _HIGHEST_LEVEL)), ("segment", np.repeat(sizes, sizes))):
        _require((found[name] >= 0) & (found[name] <= most), f"has a {name} out of bounds")
    _require((found["n_action"] > 0) & (found["n_observation"] >= 0), "has no action")
    parent = np.where(found["parent"] >= 0, found["parent"] + np.arange(len(nodes)) - place, -1)
    partial = nodes["partial"].to_numpy()
    turn = np.where(parent >= 0, found["turn"][parent] + ~partial[parent], 0) if len(nodes) else parent
    _require(found["turn"] == turn, "has another turn than its parents make it")
    context = np.where(found["context"] >= 0, found["context"] + np.arange(len(nodes)) - place, -1)
    first, size = (np.asarray(each, np.int64) for each in subtrees(parent.tolist()))
    below = first - first[context] if len(nodes) else first
    _require((context < 0) | ((below >= 0) & (below < size[context])), "continues a context that is not above it")
    seen = _sums(context, found["n_observation"] + found["n_action"]) - found["n_action"]
    asked = nodes["prompt_tokens"].to_numpy()
    _require((asked == 0) | (asked == seen), "has other tokens than the server saw")
    _check_masks(nodes, found["n_action"])


def _require(fits: NDArray[np.bool_], problem: str) -> None:
    if not fits.all():
        raise GraphError(f"row {int(np.argmin(fits))} of the nodes {problem}.")


def _check_masks(nodes: pa.Table, n_action: Ints) -> None:
    lists = nodes["masks"].combine_chunks()
    spans = lists.flatten().field("value")
    owner = np.repeat(np.arange(len(nodes)), pc.list_value_length(lists).to_numpy())
    most = n_action[np.repeat(owner, pc.list_value_length(spans).to_numpy())]
    start, stop = (spans.flatten().field(name).to_numpy() for name in ("start", "stop"))
    if ((start < 0) | (stop < start) | (stop > most)).any():
        raise GraphError("a mask has a span beyond the tokens of its action.")


def _check_names(nodes: pa.Table) -> None:
    """Columns of workers and environments must not take the place of those that every table has."""
    for column in EXTRAS:
        _refuse_names("extra", nodes[column], TURN_COLUMNS)
    _refuse_names("masks", nodes["masks"], TOKEN_COLUMNS)


def _refuse_names(where: str, lists: pa.ChunkedArray, taken: Any) -> None:
    names = pc.unique(lists.combine_chunks().flatten().field("name")).to_pylist()
    for name in {*names} & {*taken}:
        raise GraphError(f"`{where}` has {name!r}, which is a column of every turn table.")


def _check_episodes(columns: Columns, sizes: Ints, counts: Ints) -> None:
    leaf = columns.episodes["leaf"].to_numpy().astype(np.int64)
    tree = columns.episodes["tree"].to_numpy()
    group = np.repeat(np.arange(len(counts)), counts)
    if ((leaf < -1) | (leaf >= sizes[group])).any():
        raise GraphError("an episode ends with a node that its task does not have.")
    if ((tree < 0) | (tree > counts[group])).any():
        raise GraphError("an episode grows from a root that its task does not have.")
    if not len(columns.nodes):
        return
    first = np.cumsum(sizes) - sizes
    parent = columns.nodes["parent"].to_numpy().astype(np.int64)
    above = np.where(parent >= 0, parent + np.repeat(first, sizes), -1)
    depth = _sums(above, np.ones(len(above), np.int64))
    ended = leaf >= 0
    steps = depth[(leaf + first[group])[ended]]
    if (np.bincount(group[ended], steps, len(counts)) > MOST_STEPS).any():
        raise GraphError(f"the paths of a task have more than {MOST_STEPS} turns together.")


def _sums(link: Ints, values: Ints) -> Ints:
    """The sum of the values along the links from each node, its own included; each round doubles the strides."""
    sums = np.array(values)
    while (link >= 0).any():
        sums = sums + np.where(link >= 0, sums[link], 0)
        link = np.where(link >= 0, link[link], -1)
    return sums
