"""The turn table of a batch, from its light columns: no step of the interpreter for each turn.

Shapes: G tasks, M nodes, T turns of the table, E complete episodes, S steps, N action tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.graph.build_table import Learns
from verl_hier.graph.columnar.layout import NODE_BOOLS, Columns
from verl_hier.graph.columnar.token_columns import token_columns
from verl_hier.graph.paths import Ints, chain_numbers, first_of, paths_to
from verl_hier.graph.records import CUT
from verl_hier.graph.turn_table import Array, TurnTable

_COMPLETE = ("finished", "truncated")
_NUMBERS = ("extra_bool", "extra_int", "extra_float")


def table_of(columns: Columns, learns: Sequence[Learns] | None = None) -> tuple[TurnTable, list[Ints]]:
    """The turn table of several tasks, and which turn of it each node became; see `number_turns`.

    Args:
        columns: of graphs whose `check` passes. Heavy columns are read when a token column is asked for.
        learns: for each task, what the schedule trains in this step; everything when omitted.
    """
    sizes, counts = (column_numbers(columns.tasks[name]) for name in ("nodes", "episodes"))
    ends = np.cumsum(sizes)
    offset = np.repeat(ends - sizes, sizes)
    nodes = columns.nodes.combine_chunks()
    parent, context, plan = (_link(column_numbers(nodes[name]), offset) for name in ("parent", "context", "plan"))
    group_of_episode = np.repeat(np.arange(len(sizes)), counts)
    leaf = column_numbers(columns.episodes["leaf"])
    complete = complete_episodes(columns)
    group = group_of_episode[complete]
    leaves = leaf[complete] + (ends - sizes)[group]
    paths = paths_to(leaves, parent)
    used = np.zeros(len(nodes), bool)
    used[paths.node] = True
    turn_of = np.where(used, np.cumsum(used) - 1, -1)
    parts = np.split(turn_of, ends[:-1]) if len(sizes) else []
    if not used.any():
        names: dict[str, tuple[str, ...]] = dict.fromkeys(("agent", "role", "policy", "source"), ())
        return TurnTable({}, {}, paths.episode, paths.node, names=names), parts
    chosen = np.flatnonzero(used)
    kept = nodes if used.all() else nodes.take(pa.array(chosen))
    trees = np.zeros(len(sizes), np.int64)
    np.maximum.at(trees, group_of_episode, column_numbers(columns.episodes["tree"]) + 1)
    episodes, sources = _episode_columns(columns, complete, group, np.maximum(trees, 1))
    episodes["leaf"], episodes["turns"] = turn_of[leaves], np.bincount(paths.episode, minlength=len(leaves))
    turns, names, anchors = _node_columns(kept)
    turns["group"] = np.repeat(np.arange(len(sizes)), sizes)[chosen]
    for name, link in (("parent", parent), ("plan", plan)):
        turns[name] = np.where(link[chosen] >= 0, turn_of[link[chosen]], -1)
    step_turn = turn_of[paths.node]
    turns["episode"] = first_of(step_turn, paths.episode, len(kept))
    turns["depth"] = first_of(step_turn, paths.place, len(kept))
    turns["leaves"] = np.bincount(step_turn)
    turns["return"] = _means(episodes["return"][paths.episode], step_turn)
    turns["row"] = _rows(leaves, parent, context, episodes, turn_of, turns["group"])
    offered = np.bincount(step_turn, ~episodes["withheld"][paths.episode]) > 0
    turns["trained"] &= offered & _learning(turns, names["role"], learns)
    turns |= _extra_columns(kept, _ends(turns["parent"], column_numbers(kept["partial"], bool)))
    tokens = token_columns(columns, kept, chosen, turns["n_tokens"])
    names |= {"source": sources}
    table = TurnTable(turns, episodes, paths.episode, step_turn, tokens, names, anchors, _texts(kept))
    return table, parts


def complete_episodes(columns: Columns) -> NDArray[np.bool_]:
    """Whether each episode is one of `RolloutGraph.complete`."""
    leaf = columns.episodes["leaf"].to_numpy()
    found: NDArray[np.bool_] = _is_in(columns.episodes["status"], _COMPLETE) & (leaf >= 0)
    return found


def column_numbers(column: pa.ChunkedArray, dtype: Any = np.int64) -> Array:
    """A column without nulls as an array of its own, which may be written to."""
    found: Array = np.array(column.to_numpy(), dtype)
    return found


def _is_in(column: pa.ChunkedArray, values: Sequence[str]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(column, value_set=pa.array(values)).to_numpy()
    return found


def _link(link: Ints, offset: Ints) -> Ints:
    return np.where(link >= 0, link + offset, -1)


def _codes(column: pa.ChunkedArray) -> tuple[Ints, tuple[Any, ...]]:
    """Texts as numbers in the order in which they come up, and what the numbers stand for; -1 for null."""
    known = pc.unique(column).drop_null()
    return column_numbers(pc.fill_null(pc.index_in(column, value_set=known), -1)), tuple(known.to_pylist())


def cut_nodes(nodes: pa.Table) -> NDArray[np.bool_]:
    """(M,) which nodes were cut, see `Node.stop_reason`."""
    return _is_in(nodes["stop_reason"], CUT)


def _episode_columns(
    columns: Columns, complete: NDArray[np.bool_], group: Ints, trees: Ints
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The columns that each complete episode has for itself, and the names of the sources."""
    records = columns.episodes.filter(pa.array(complete))
    tasks = [number if index is None else index for number, index in enumerate(columns.tasks["index"].to_pylist())]
    source, sources = _codes(columns.tasks["data_source"].take(pa.array(group)))
    found: dict[str, Array] = {
        "group": group,
        "return": column_numbers(records["ret"], np.float64),
        "success": column_numbers(pc.fill_null(pc.cast(records["success"], pa.int8()), 2), np.float64),
        "tree": (np.cumsum(trees) - trees)[group] + column_numbers(records["tree"]),
        "trained": column_numbers(records["trained"], bool),
        "withheld": column_numbers(records["withheld"], bool),
        "task": np.asarray(tasks, np.int64)[group],
        "source": source,
    }
    found["success"][found["success"] == 2] = np.nan
    return found, sources


def _node_columns(nodes: pa.Table) -> tuple[dict[str, Array], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The columns that each node has for itself, the names of agents, roles and policies, and those of anchors."""
    coded = {name: _codes(nodes[name]) for name in ("agent", "role", "policy", "anchor")}
    columns: dict[str, Array] = {name: codes for name, (codes, _) in coded.items()}
    names = {name: known for name, (_, known) in coded.items()}
    anchors = names.pop("anchor")
    columns |= {name: column_numbers(nodes[name]) for name in ("level", "turn", "segment")}
    columns |= {"reward": column_numbers(nodes["reward"], np.float64)}
    columns |= {name: column_numbers(nodes[name], bool) for name in NODE_BOOLS if name != "partial"}
    columns["complete"] = ~cut_nodes(nodes)
    columns |= {"n_tokens": column_numbers(nodes["n_action"]), "n_prompt": column_numbers(nodes["n_observation"])}
    columns["entropy"] = column_numbers(nodes["mean_entropy"], np.float64)
    return columns, names, anchors


def _means(values: NDArray[np.float64], turn: Ints) -> NDArray[np.float64]:
    """(T,) mean of step values over each turn, as `numpy.mean` of a list has it, which adds in an order of its own."""
    count = np.bincount(turn)
    ordered = values[np.argsort(turn, kind="stable")]
    start = np.cumsum(count) - count
    means = np.empty(len(count))
    for size in np.unique(count):
        chosen = np.flatnonzero(count == size)
        means[chosen] = ordered[start[chosen, None] + np.arange(size)].mean(axis=1)
    return means


def _rows(
    leaves: Ints, parent: Ints, context: Ints, episodes: dict[str, Array], turn_of: Ints, group_of_turn: Ints
) -> Ints:
    """(T,) number of the chain that trains each turn, or of the first one that does; see `rows.owning_chains`."""
    group = episodes["group"]
    order = np.lexsort((~episodes["trained"], group))
    paths = paths_to(leaves[order], parent)
    numbers = chain_numbers(paths, context, group[order])
    own = first_of(turn_of[paths.node], numbers, len(group_of_turn))
    rows = np.zeros(1 + group.max(), np.int64)
    np.maximum.at(rows, group_of_turn, own)
    rows += 1
    found: Ints = own + (np.cumsum(rows) - rows)[group_of_turn]
    return found


def _learning(turns: dict[str, Array], roles: Sequence[str], learns: Sequence[Learns] | None) -> Array:
    """(T,) whether the schedule trains the role and level of each turn; it is asked once for each of them."""
    if learns is None:
        return np.ones(len(turns["role"]), bool)
    levels, level = np.unique(turns["level"], return_inverse=True)
    kind = (turns["group"] * len(roles) + turns["role"]) * len(levels) + level
    kinds, kind = np.unique(kind, return_inverse=True)
    rest, level = np.divmod(kinds, len(levels))
    group, role = np.divmod(rest, len(roles))
    asked = zip(group.tolist(), role.tolist(), levels[level].tolist(), strict=True)
    return np.asarray([learns[place](roles[number], height) for place, number, height in asked], bool)[kind]


def _ends(parent: Ints, partial: NDArray[np.bool_]) -> Ints:
    """(T,) the last piece of each turn in the episode that went on with it first; a turn in one piece is its own."""
    end = np.arange(len(parent))
    before, first = np.unique(parent, return_index=True)
    goes_on = np.flatnonzero(before >= 0)
    end[before[goes_on]] = first[goes_on]
    end = np.where(partial, end, np.arange(len(parent)))
    while ((further := end[end]) != end).any():
        end = further
    return end


def _extra_columns(nodes: pa.Table, ends: Ints) -> dict[str, Array]:
    """The numbers that workers and environments have noted; NaN for turns without them.

    They are noted of the end of a turn, and hold for all its pieces.

    Args:
        nodes: of the turns.
        ends: (T,) the last piece of each, see `_ends`.
    """
    found: dict[str, list[tuple[Ints, Array]]] = {}
    for column in _NUMBERS:
        lists = nodes[column].combine_chunks()
        entries = lists.flatten()
        place = np.repeat(np.arange(len(nodes)), column_numbers(pc.list_value_length(lists)))
        code, names = _codes(entries.field("name"))
        values = entries.field("value").to_numpy(zero_copy_only=False)
        for number, name in enumerate(names):
            mine = code == number
            found.setdefault(name, []).append((place[mine], values[mine]))
    columns = {}
    for name, parts in sorted(found.items(), key=lambda item: min(int(places[0]) for places, _ in item[1])):
        places, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        noted = np.full(len(nodes), -1)
        noted[places] = np.arange(len(places))
        noted = np.where(noted < 0, noted[ends], noted)
        dtype = values.dtype if (noted >= 0).all() else np.float64
        columns[name] = np.full(len(nodes), np.nan if dtype == np.float64 else 0, dtype)
        columns[name][noted >= 0] = values[noted[noted >= 0]]
    return columns


def _texts(nodes: pa.Table) -> dict[str, Array]:
    """The texts that workers have noted, by name: (T,) str, None for turns without; how a turn failed is counted, and
    no text of it."""
    lists = nodes["extra_text"].combine_chunks()
    entries = lists.flatten()
    place = np.repeat(np.arange(len(nodes)), column_numbers(pc.list_value_length(lists)))
    columns: dict[str, Array] = {}
    for row, name, text in zip(
        place.tolist(), entries.field("name").to_pylist(), entries.field("value").to_pylist(), strict=True
    ):
        if name != "failure":
            columns.setdefault(name, np.full(len(nodes), None, object))[row] = text
    return columns
