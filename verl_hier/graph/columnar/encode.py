"""Rollout graphs as columns."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verl_hier.graph.columnar.layout import (
    EPISODE_DECISION,
    EPISODES,
    EXTRAS,
    HEAVY,
    LIGHT,
    NODE_BOOLS,
    NODE_INTS,
    NODE_TEXTS,
    TASK_JSON,
    TASK_RECORDS,
    TASKS,
    Columns,
)
from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph

_ENCODER = json.JSONEncoder(separators=(",", ":"))
_KINDS: Mapping[type, str] = {bool: "extra_bool", int: "extra_int", float: "extra_float", str: "extra_text"}


def encode(graphs: Sequence[RolloutGraph]) -> Columns:
    """The light columns of some graphs; a heavy column is made when it is asked for.

    Raises:
        OverflowError: for a number that does not fit its column.
    """
    nodes = [node for graph in graphs for node in graph.nodes]
    return Columns(
        encode_tasks(graphs),
        encode_episodes([episode for graph in graphs for episode in graph.episodes]),
        encode_light(nodes),
        lambda name: pa.chunked_array([_HEAVY[name](nodes)], HEAVY.field(name).type),
    )


@dataclass(frozen=True)
class Whole:
    """All columns of some tasks, one task after the other.

    Attributes:
        tasks: rows with the columns `TASKS` and `TASK_RECORDS`.
        episodes: rows of all episodes with the columns `EPISODES` and `EPISODE_DECISION`.
        nodes: rows of all nodes with the columns `LIGHT` and `HEAVY`.
    """

    tasks: pa.Table
    episodes: pa.Table
    nodes: pa.Table


def encode_whole(graphs: Sequence[RolloutGraph]) -> Whole:
    """All columns of some graphs.

    Raises:
        OverflowError: for a number that does not fit its column.
        TypeError: for a value that no file can hold.
    """
    records = [episode for graph in graphs for episode in graph.episodes]
    nodes = [node for graph in graphs for node in graph.nodes]
    heavy = encode_heavy(nodes)
    return Whole(
        beside(encode_tasks(graphs), encode_records(graphs)),
        beside(encode_episodes(records), encode_decisions(records)),
        beside(encode_light(nodes, heavy["logprobs"].chunk(0)), heavy),
    )


def beside(*tables: pa.Table) -> pa.Table:
    """One table with the columns of all."""
    return pa.table({name: table[name] for table in tables for name in table.column_names})


def encode_tasks(graphs: Sequence[RolloutGraph]) -> pa.Table:
    """The columns `TASKS` of graphs."""
    tasks = {
        "uid": [uid_of(graph) for graph in graphs],
        "index": [None if "index" not in graph.task else int(graph.task["index"]) for graph in graphs],
        "data_source": [str(graph.task.get("data_source", "unknown")) for graph in graphs],
        "nodes": [len(graph.nodes) for graph in graphs],
        "episodes": [len(graph.episodes) for graph in graphs],
    }
    return pa.table(tasks, TASKS)


def encode_light(nodes: Sequence[Node], logprobs: pa.ListArray | None = None) -> pa.Table:
    """The columns `LIGHT` of nodes. Values of `extra` that are no number, text or bool are left out.

    Args:
        nodes: in the order of the rows.
        logprobs: their heavy column of that name, where it is made anyway.
    """
    count = len(nodes)
    columns: dict[str, Any] = {name: _numbers(nodes, name, np.int32) for name in NODE_INTS}
    columns |= {name: _numbers(nodes, name, np.bool_) for name in NODE_BOOLS}
    columns |= {name: pa.array(list(map(attrgetter(name), nodes)), pa.string()) for name in NODE_TEXTS}
    columns["n_observation"] = np.fromiter(map(len, map(attrgetter("observation"), nodes)), np.int32, count)
    columns["n_action"] = np.fromiter(map(len, map(attrgetter("action"), nodes)), np.int32, count)
    columns["reward"] = _numbers(nodes, "reward", np.float64)
    columns["has_entropy"] = np.fromiter(map(bool, map(attrgetter("entropy"), nodes)), np.bool_, count)
    columns["mean_entropy"] = _mean_entropies(nodes, columns["has_entropy"], logprobs)
    columns |= _extras(nodes)
    masks = [node.masks for node in nodes]
    columns["masks"] = _mappings(masks, _spans([spans for each in masks for spans in each.values()]))
    return pa.table({name: columns[name] for name in LIGHT.names}, LIGHT)


def encode_heavy(nodes: Sequence[Node]) -> pa.Table:
    """The columns `HEAVY` of nodes.

    Raises:
        OverflowError: for a number that does not fit its column.
        TypeError: for a value in `extra` or `decision` that no file can hold.
    """
    extras = [node.extra for node in nodes]
    foreign = [kind for kind in set(map(type, _values(extras))) if _extra_column(kind) is None]
    for node in nodes if foreign else ():
        for name, value in node.extra.items():
            if type(value) in foreign:
                raise TypeError(f"`extra` of node {node.id} has {name!r}, an object of type {type(value).__name__}")
    return pa.table({name: make(nodes) for name, make in _HEAVY.items()}, HEAVY)


def encode_episodes(episodes: Sequence[EpisodeRecord]) -> pa.Table:
    """The columns `EPISODES` of episodes."""
    columns: dict[str, Any] = {
        name: _numbers(episodes, name, np.int32) for name in ("source", "shared", "tree", "leaf")
    }
    columns |= {name: _numbers(episodes, name, np.bool_) for name in ("trained", "greedy", "withheld")}
    columns |= {name: pa.array([getattr(each, name) for each in episodes], pa.string()) for name in ("status", "error")}
    columns["ret"] = _numbers(episodes, "ret", np.float64)
    columns["success"] = pa.array(
        [None if each.success is None else bool(each.success) for each in episodes], pa.bool_()
    )
    infos = [episode.reward_info for episode in episodes]
    values = np.fromiter((value for info in infos for value in info.values()), np.float64)
    columns["reward_info"] = _mappings(infos, pa.array(values))
    return pa.table({name: columns[name] for name in EPISODES.names}, EPISODES)


def encode_decisions(episodes: Sequence[EpisodeRecord]) -> pa.Table:
    """The decisions of episodes.

    Raises:
        TypeError: for a value that JSON cannot represent.
    """
    return pa.table({"decision": [_json(episode.decision) for episode in episodes]}, EPISODE_DECISION)


def encode_records(graphs: Sequence[RolloutGraph]) -> pa.Table:
    """The columns `TASK_RECORDS` of graphs.

    Raises:
        TypeError: for a value that JSON cannot represent.
    """
    columns: dict[str, Any] = {
        "version": [graph.version for graph in graphs],
        "started": [graph.step for graph in graphs],
        "seed": [graph.seed for graph in graphs],
        "short": [graph.short for graph in graphs],
    }
    columns |= {name: [_json(getattr(graph, name)) for graph in graphs] for name in TASK_JSON}
    return pa.table(columns, TASK_RECORDS)


def uid_of(graph: RolloutGraph) -> str:
    """The uid of the graph's task, empty where it has none."""
    return str(graph.task.get("uid", ""))


def _json(value: Mapping[str, Any]) -> str | None:
    return _ENCODER.encode(value) if value else None


def _numbers(records: Sequence[Any], name: str, dtype: Any) -> NDArray[Any]:
    return np.fromiter(map(attrgetter(name), records), dtype, len(records))


def _offsets(lengths: NDArray[np.int64]) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if ends[-1] >= 2**31:
        raise OverflowError(f"{ends[-1]} values in one column are too many; encode fewer tasks at once")
    return pa.array(ends.astype(np.int32))


def _lengths(lists: Sequence[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def _list_of(lists: Sequence[Any], values: pa.Array) -> pa.ListArray:
    """Lists of given lengths whose values stand one after the other."""
    return pa.ListArray.from_arrays(_offsets(_lengths(lists)), values)


def lists_of(lists: Sequence[Any], dtype: Any) -> pa.ListArray:
    """Lists of plain numbers."""
    return pa.ListArray.from_arrays(_offsets(_lengths(lists)), pa.array(_flat(lists, dtype)))


def _flat(lists: Sequence[list[Any]], dtype: Any) -> NDArray[Any]:
    """All numbers of some lists, one list after the other; `struct` and `array` read a list in a third to half of the
    time of numpy, whole numbers and others faster than each other.

    Raises:
        OverflowError: for a number that does not fit.
        TypeError: for what is no number, where others than whole ones are wanted.
    """
    sign = np.dtype(dtype).char
    if sign == "d":
        numbers = array(sign)
        for each in lists:
            numbers.fromlist(each)
        return np.frombuffer(numbers, dtype)
    try:
        packed = b"".join([_packer(len(each), sign)(*each) for each in lists if each])
        return np.frombuffer(packed, dtype)
    except struct.error as error:
        raise OverflowError(str(error)) from error


@lru_cache(maxsize=4096)
def _packer(count: int, sign: str) -> Callable[..., bytes]:
    """Packs so many numbers; to look for the format by its name would take as long as to pack a hundred."""
    return struct.Struct(f"{count}{sign}").pack


def _mappings(mappings: Sequence[Mapping[str, Any]], values: pa.Array) -> pa.ListArray:
    """Mappings whose values are given, one mapping after the other."""
    names = pa.array(list(chain.from_iterable(mappings)), pa.string())
    return _list_of(mappings, pa.StructArray.from_arrays([names, values], ["name", "value"]))


def _spans(lists: Sequence[Sequence[Sequence[int]]]) -> pa.ListArray:
    flat = np.fromiter((end for spans in lists for span in spans for end in span), np.int32).reshape(-1, 2)
    pairs = pa.StructArray.from_arrays([pa.array(flat[:, 0]), pa.array(flat[:, 1])], ["start", "stop"])
    return _list_of(lists, pairs)


def _mean_entropies(
    nodes: Sequence[Node], given: NDArray[np.bool_], logprobs: pa.ListArray | None
) -> NDArray[np.float64]:
    """(M,) mean entropy of each node, and mean -log p where the server gave no entropies.

    A sum adds its terms one after the other on every version of Python, whose own `sum` has changed.
    """
    if given.any() or logprobs is None:
        lists = [node.entropy or node.logprobs for node in nodes]
        count, values = _lengths(lists), _flat(lists, np.float64)
    else:
        count, values = np.diff(logprobs.offsets), logprobs.values.to_numpy()
    values = np.where(np.repeat(given, count), values, -values)
    sums = np.bincount(np.repeat(np.arange(len(nodes)), count), values, len(nodes))
    means: NDArray[np.float64] = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return means


def _values(mappings: Iterable[Mapping[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(each.values() for each in mappings)


def _extra_column(kind: type) -> str | None:
    """The column of values of a type, None when there is none."""
    return _KINDS.get(kind) or next((column for base, column in _KINDS.items() if issubclass(kind, base)), None)


def _extras(nodes: Sequence[Node]) -> dict[str, pa.Array]:
    extras = [node.extra for node in nodes]
    names, values = list(chain.from_iterable(extras)), list(_values(extras))
    owners = np.repeat(np.arange(len(nodes)), _lengths(extras))
    kinds = list(map(type, values))
    column_of = {kind: _extra_column(kind) for kind in set(kinds)}
    columns = {}
    for column, kind in EXTRAS.items():
        chosen = np.fromiter((column_of[each] == column for each in kinds), np.bool_, len(kinds))
        parts = [pa.array(list(compress(names, chosen)), pa.string()), pa.array(list(compress(values, chosen)), kind)]
        entries = pa.StructArray.from_arrays(parts, ["name", "value"])
        counts = np.bincount(owners[chosen], minlength=len(nodes))
        columns[column] = pa.ListArray.from_arrays(_offsets(counts), entries)
    return columns


def _top(nodes: Sequence[Node]) -> pa.ListArray:
    lists = [node.top for node in nodes]
    inner = list(chain.from_iterable(lists))
    pairs = list(chain.from_iterable(inner))
    tokens = np.fromiter((pair[0] for pair in pairs), np.int32, len(pairs))
    logprobs = np.fromiter((pair[1] for pair in pairs), np.float64, len(pairs))
    entries = pa.StructArray.from_arrays([pa.array(tokens), pa.array(logprobs)], ["token", "logprob"])
    return _list_of(lists, _list_of(inner, entries))


def _messages(nodes: Sequence[Node]) -> pa.ListArray:
    lists = [node.messages for node in nodes]
    flat = list(chain.from_iterable(lists))
    parts = [
        pa.array([message.role for message in flat], pa.string()),
        pa.array([message.content for message in flat], pa.string()),
        lists_of([message.sources for message in flat], np.int32),
    ]
    return _list_of(lists, pa.StructArray.from_arrays(parts, ["role", "content", "sources"]))


def _tokens(name: str, dtype: Any) -> Callable[[Sequence[Node]], pa.Array]:
    return lambda nodes: lists_of(list(map(attrgetter(name), nodes)), dtype)


def _version(place: int) -> Callable[[Sequence[Node]], pa.Array]:
    return lambda nodes: pa.array(np.fromiter((node.policy_version[place] for node in nodes), np.int32, len(nodes)))


def _texts(texts: Iterable[str | None]) -> pa.Array:
    return pa.array(list(texts), pa.string())


_HEAVY: Mapping[str, Callable[[Sequence[Node]], pa.Array]] = {
    "observation": _tokens("observation", np.int32),
    "action": _tokens("action", np.int32),
    "logprobs": _tokens("logprobs", np.float64),
    "entropy": _tokens("entropy", np.float64),
    "top": _top,
    "policy_low": _version(0),
    "policy_high": _version(1),
    "text": lambda nodes: _texts(node.text for node in nodes),
    "messages": _messages,
    "decision": lambda nodes: _texts(_json(node.decision) for node in nodes),
}
