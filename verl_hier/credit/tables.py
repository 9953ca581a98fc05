"""Turn tables from a few columns: for fixtures, tests and plugin authors. The rest of the columns is derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit.groups import number
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable

Array = NDArray[Any]
_BOOLS = {"done": False, "truncated": False, "valid": True, "complete": True, "trained": True}


def make_table(
    turns: Mapping[str, ArrayLike],
    *,
    episodes: Mapping[str, ArrayLike] | None = None,
    tokens: Mapping[str, ArrayLike] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    anchors: Sequence[str] = (),
) -> TurnTable:
    """A complete turn table from the columns that matter.

    Args:
        turns: any of `TURN_COLUMNS` and more, T long. Integer key columns may hold labels (strings), which are
            numbered in sorted order. With `parent` the turns form trees and every turn without a child is the leaf
            of one episode, in turn order; without it, turns of one `episode` label form a chain ordered by `turn`.
            Missing columns get neutral values; `return` defaults to the sum of the rewards along the path.
        episodes: episode columns, E long, over the derived ones.
        tokens: token columns, N long, with `turn`.
        names: vocabularies for integer columns; string columns bring their own.
        anchors: text of each anchor number; a string `anchor` column brings its own.

    Raises:
        CreditError: when the columns have different lengths or a parent comes after its child.
    """
    columns = {name: np.asarray(column) for name, column in turns.items()}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise CreditError(f"turns columns have different lengths: {sorted(lengths)}.")
    count = lengths.pop()
    vocabulary = {key: tuple(value) for key, value in (names or {}).items()}
    for name, column in list(columns.items()):
        if column.dtype.kind in "UO":
            codes, _ = number(column)
            columns[name] = codes
            vocabulary.setdefault(name, tuple(str(v) for v in np.unique(column.astype(str))))
    if "anchor" in vocabulary and not anchors:
        anchors = vocabulary["anchor"]
    columns.setdefault("group", np.zeros(count, np.int64))
    columns.setdefault("reward", np.zeros(count))
    step_episode, step_turn = _tree_steps(columns) if "parent" in columns else _chain_steps(columns, count)
    _fill(columns, step_episode, step_turn, count)
    per_episode = _episodes(columns, step_episode, step_turn, episodes or {})
    through = np.bincount(step_turn, minlength=count)
    mean_return = np.bincount(step_turn, per_episode["return"][step_episode], count) / np.maximum(through, 1)
    columns.setdefault("return", mean_return)
    columns.setdefault("leaves", through.astype(np.int64))
    return TurnTable(
        turns=columns,
        episodes=per_episode,
        step_episode=step_episode,
        step_turn=step_turn,
        tokens={name: np.asarray(column) for name, column in (tokens or {}).items()},
        names=vocabulary,
        anchors=tuple(anchors),
    )


def _chain_steps(columns: dict[str, Array], count: int) -> tuple[Array, Array]:
    """Steps of chains; fills `episode`, `turn` and `parent`."""
    episode = number(columns.setdefault("episode", np.arange(count)))[0]
    columns["episode"] = episode
    if "turn" not in columns:
        order = np.argsort(episode, kind="stable")
        sizes = np.bincount(episode)
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        columns["turn"] = rank
    order = np.lexsort((columns["turn"], episode)).astype(np.int64)
    parent = np.full(count, -1, np.int64)
    same = episode[order][1:] == episode[order][:-1]
    parent[order[1:][same]] = order[:-1][same]
    columns["parent"] = parent
    return episode[order], order


def _tree_steps(columns: dict[str, Array]) -> tuple[Array, Array]:
    """Steps of trees; fills `episode`, `turn` and `depth`."""
    parent = columns["parent"].astype(np.int64)
    count = len(parent)
    if (parent >= np.arange(count)).any():
        raise CreditError("make_table wants parents before their children.")
    has_child = np.bincount(parent[parent >= 0], minlength=count) > 0
    node = np.flatnonzero(~has_child)
    leaf = np.arange(len(node))
    episodes, nodes, distance = [], [], []
    for up in range(count):
        if node.size == 0:
            break
        episodes.append(leaf)
        nodes.append(node)
        distance.append(np.full(node.size, up))
        keep = parent[node] >= 0
        leaf, node = leaf[keep], parent[node][keep]
    step_episode, step_turn = np.concatenate(episodes), np.concatenate(nodes)
    order = np.lexsort((-np.concatenate(distance), step_episode))
    step_episode, step_turn = step_episode[order].astype(np.int64), step_turn[order].astype(np.int64)
    owner = np.full(count, len(leaf), np.int64)
    owner[step_turn[::-1]] = step_episode[::-1]
    columns["parent"] = parent
    columns.setdefault("episode", owner)
    lengths = np.bincount(step_episode)
    rank = np.arange(len(step_episode)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    depth = np.zeros(count, np.int64)
    depth[step_turn] = rank
    columns.setdefault("turn", depth)
    return step_episode, step_turn


def _last_steps(step_episode: Array) -> Array:
    """The last step of each episode."""
    last = np.ones(len(step_episode), np.bool_)
    last[:-1] = step_episode[1:] != step_episode[:-1]
    return np.flatnonzero(last)


def _fill(columns: dict[str, Array], step_episode: Array, step_turn: Array, count: int) -> None:
    """Neutral values for the standard columns that are missing."""
    for name in ("agent", "role", "policy", "level"):
        columns.setdefault(name, np.zeros(count, np.int64))
    columns.setdefault("segment", np.zeros(count, np.int64))
    columns.setdefault("plan", np.full(count, -1, np.int64))
    columns.setdefault("depth", columns["turn"])
    columns.setdefault("row", columns["episode"])
    for name, default in _BOOLS.items():
        if name in columns:
            columns[name] = columns[name].astype(bool)
            continue
        columns[name] = np.full(count, default)
        if name == "done":
            columns[name][step_turn[_last_steps(step_episode)]] = True
            if "truncated" in columns:
                columns[name] &= ~columns["truncated"].astype(bool)
    columns.setdefault("n_tokens", np.ones(count, np.int64))
    columns.setdefault("n_prompt", np.zeros(count, np.int64))
    columns.setdefault("anchor", np.full(count, -1, np.int64))
    columns.setdefault("entropy", np.zeros(count))


def _episodes(
    columns: dict[str, Array], step_episode: Array, step_turn: Array, given: Mapping[str, ArrayLike]
) -> dict[str, Array]:
    """Episode columns along the paths, `given` over the derived ones."""
    last = _last_steps(step_episode)
    count, first = len(last), np.append(0, last + 1)[: len(last)]
    reward = np.asarray(columns["reward"], np.float64)[step_turn]
    total: Array = np.bincount(step_episode, reward, count)
    if "return" in columns:
        total = np.asarray(columns["return"], np.float64)[step_turn[last]]
    trained = np.bincount(step_episode, columns["trained"][step_turn], count) > 0
    derived: dict[str, Array] = {
        "group": columns["group"][step_turn[last]],
        "return": total,
        "success": np.full(count, np.nan),
        "leaf": step_turn[last],
        "tree": number(step_turn[first])[0],
        "trained": trained,
        "withheld": np.zeros(count, np.bool_),
        "turns": np.bincount(step_episode, minlength=count).astype(np.int64),
        "task": columns["group"][step_turn[last]],
        "source": np.zeros(count, np.int64),
    }
    derived.update({name: np.asarray(column) for name, column in given.items()})
    return derived
