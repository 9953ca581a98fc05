"""Rollout graphs as columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
from verl_hier.graph.records import SCHEMA_VERSION

_KINDS: Mapping[type, str] = {bool: "extra_bool", int: "extra_int", float: "extra_float", str: "extra_text"}


def encode(graphs: Sequence[RolloutGraph]) -> Columns:
    """The light columns of some graphs; a heavy column is made when it is asked for.

    Raises:
        OverflowError: for a number that does not fit its column.
    """
    nodes = [node for graph in graphs for node in graph.nodes]
    tasks = {
        "uid": [uid_of(graph) for graph in graphs],
        "index": [None if "index" not in graph.task else int(graph.task["index"]) for graph in graphs],
        "data_source": [str(graph.task.get("data_source", "unknown")) for graph in graphs],
        "nodes": [len(graph.nodes) for graph in graphs],
        "episodes": [len(graph.episodes) for graph in graphs],
    }
    episodes = encode_episodes([episode for graph in graphs for episode in graph.episodes])
    light = encode_light(nodes)
    return Columns(
        pa.table(tasks, TASKS),
        episodes,
        light,
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
    columns = encode(graphs)
    records = [episode for graph in graphs for episode in graph.episodes]
    nodes = [node for graph in graphs for node in graph.nodes]
    return Whole(
        beside(columns.tasks, encode_records(graphs)),
        beside(columns.episodes, encode_decisions(records)),
        beside(columns.nodes, encode_heavy(nodes)),
    )


def beside(*tables: pa.Table) -> pa.Table:
    """One table with the columns of all."""
    return pa.table({name: table[name] for table in tables for name in table.column_names})


def encode_light(nodes: Sequence[Node]) -> pa.Table:
    """The columns `LIGHT` of nodes. Values of `extra` that are no number, text or bool are left out."""
    count = len(nodes)
    columns: dict[str, Any] = {name: _numbers(nodes, name, np.int32) for name in NODE_INTS}
    columns |= {name: _numbers(nodes, name, np.bool_) for name in NODE_BOOLS}
    columns |= {name: pa.array(list(map(attrgetter(name), nodes)), pa.string()) for name in NODE_TEXTS}
    columns["n_observation"] = np.fromiter(map(len, map(attrgetter("observation"), nodes)), np.int32, count)
    columns["n_action"] = np.fromiter(map(len, map(attrgetter("action"), nodes)), np.int32, count)
    columns["reward"] = _numbers(nodes, "reward", np.float64)
    columns["has_entropy"] = np.fromiter(map(bool, map(attrgetter("entropy"), nodes)), np.bool_, count)
    columns["mean_entropy"] = _mean_entropies(nodes, columns["has_entropy"])
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
    for node in nodes:
        for name, value in node.extra.items():
            if not isinstance(value, bool | int | float | str):
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
        "version": [SCHEMA_VERSION] * len(graphs),
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
    return json.dumps(value, separators=(",", ":")) if value else None


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
    lengths = _lengths(lists)
    values = np.fromiter(chain.from_iterable(lists), dtype, int(lengths.sum()))
    return pa.ListArray.from_arrays(_offsets(lengths), pa.array(values))


def _mappings(mappings: Sequence[Mapping[str, Any]], values: pa.Array) -> pa.ListArray:
    """Mappings whose values are given, one mapping after the other."""
    names = pa.array(list(chain.from_iterable(mappings)), pa.string())
    return _list_of(mappings, pa.StructArray.from_arrays([names, values], ["name", "value"]))


def _spans(lists: Sequence[Sequence[Sequence[int]]]) -> pa.ListArray:
    flat = np.fromiter((end for spans in lists for span in spans for end in span), np.int32).reshape(-1, 2)
    pairs = pa.StructArray.from_arrays([pa.array(flat[:, 0]), pa.array(flat[:, 1])], ["start", "stop"])
    return _list_of(lists, pairs)


def _mean_entropies(nodes: Sequence[Node], given: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(M,) mean entropy of each node, and mean -log p where the server gave no entropies.

    A sum adds its terms one after the other on every version of Python, whose own `sum` has changed.
    """
    lists = [node.entropy or node.logprobs for node in nodes]
    count = _lengths(lists)
    values = np.fromiter(chain.from_iterable(lists), np.float64, int(count.sum()))
    np.negative(values, out=values, where=~np.repeat(given, count))
    sums = np.bincount(np.repeat(np.arange(len(nodes)), count), values, len(nodes))
    means: NDArray[np.float64] = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return means


def _extras(nodes: Sequence[Node]) -> dict[str, pa.Array]:
    counts = {name: np.zeros(len(nodes), np.int64) for name in EXTRAS}
    names: dict[str, list[str]] = {name: [] for name in EXTRAS}
    values: dict[str, list[Any]] = {name: [] for name in EXTRAS}
    for place, node in enumerate(nodes):
        for name, value in node.extra.items():
            column = _KINDS.get(type(value)) or next((k for t, k in _KINDS.items() if isinstance(value, t)), None)
            if column is not None:
                counts[column][place] += 1
                names[column].append(name)
                values[column].append(value)
    columns = {}
    for column, kind in EXTRAS.items():
        parts = [pa.array(names[column], pa.string()), pa.array(values[column], kind)]
        entries = pa.StructArray.from_arrays(parts, ["name", "value"])
        columns[column] = pa.ListArray.from_arrays(_offsets(counts[column]), entries)
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
