"""A group as the page asks for it: first its trees, from light columns, then the words and numbers of some turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.graph.columnar.decode import node_fields
from verl_hier.viewer.overview import title_of
from verl_hier.viewer.steps import Step

View = dict[str, Any]
LONGEST_WORDS = 20_000
"""Characters of one text that a page gets; it says how many there are."""
MOST_TOKENS = 4_000
"""Tokens of one turn whose numbers a page gets."""
_TURN = (
    "parent",
    "context",
    "plan",
    "agent",
    "role",
    "level",
    "n_action",
    "mean_entropy",
    "reward",
    "trained",
    "valid",
)
_TOLD = ("role", "level", "text", "messages", "anchor", "reward", "valid", "extra")
_EPISODE = ("source", "shared", "leaf", "status", "ret", "success", "trained", "greedy", "withheld", "error")
_WORDS = (
    *("anchor", "stop_reason", "prompt_tokens", "cached_tokens", "decision", "extra", "policy", "policy_version"),
    "masks",
)


def tree_view(step: Step, uid: str) -> View:
    """What is drawn of a group.

    Args:
        step: that holds the group.
        uid: of its task.

    Returns:
        `step`, `uid`, `title`, and for the `turns` and the `episodes` a list for each of their fields, in the order of
        their numbers. `credit` and `logprob_difference` of a turn are None where none was stored.
    """
    turns, attempts = step.turns(uid), step.attempts(uid)
    nodes, episodes = (
        table.slice(rows.start, rows.stop - rows.start)
        for table, rows in ((step.columns.nodes, turns), (step.columns.episodes, attempts))
    )
    return {
        "step": step.number,
        "uid": uid,
        "title": title_of(step.tasks[step.uids().index(uid)]),
        "episodes": {name: _values(episodes[name]) for name in _EPISODE},
        "turns": {name: _values(nodes[name]) for name in _TURN}
        | {"credit": _known(step.credit[turns]), "logprob_difference": _known(step.difference[turns])},
    }


def words_view(nodes: pa.Table, turns: Sequence[int]) -> list[View]:
    """What was said in some turns of a group, and the numbers of their tokens.

    Args:
        nodes: all columns of the nodes of the group, see `Step.nodes`.
        turns: numbers of the turns.

    Returns:
        a mapping for each of `turns`: its `id`, and other fields of its node. Texts longer than `LONGEST_WORDS` are
        cut, and `characters` of a turn or message says how long it was. `heard` are the turns whose prompts have its
        words.
    """
    heard = _heard(nodes["messages"].combine_chunks(), turns)
    fields = node_fields(nodes.take(pa.array(turns, pa.int64())))
    return [_words(each) | {"id": turn, "heard": heard[turn]} for turn, each in zip(turns, fields, strict=True)]


def paths(nodes: pa.Table, turns: Sequence[int]) -> list[list[View]]:
    """The turns from the root to each of `turns`, as `hier_render` is told them."""
    parents = nodes["parent"].to_pylist()
    chains: list[list[int]] = []
    for turn in turns:
        chain = []
        while turn >= 0:
            chain.append(turn)
            turn = parents[turn]
        chains.append(chain[::-1])
    wanted = sorted({turn for chain in chains for turn in chain})
    fields = node_fields(nodes.take(pa.array(wanted, pa.int64())))
    told = {turn: {name: each[name] for name in _TOLD} for turn, each in zip(wanted, fields, strict=True)}
    return [[told[turn] for turn in chain] for chain in chains]


def _heard(messages: pa.Array, turns: Sequence[int]) -> dict[int, list[int]]:
    """For each of some turns the nodes, in order, a message of which has words of it."""
    sources = messages.flatten().field("sources")
    reader = np.asarray(pc.list_parent_indices(messages))[np.asarray(pc.list_parent_indices(sources))]
    said = np.asarray(sources.flatten())
    return {turn: np.unique(reader[said == turn]).tolist() for turn in turns}


def _words(node: Mapping[str, Any]) -> View:
    return {name: node[name] for name in _WORDS} | {
        "text": node["text"][:LONGEST_WORDS],
        "characters": len(node["text"]),
        "messages": [
            {
                "role": message["role"],
                "content": message["content"][:LONGEST_WORDS],
                "characters": len(message["content"]),
                "sources": message["sources"],
            }
            for message in node["messages"]
        ],
        "tokens": node["action"][:MOST_TOKENS],
        "logprobs": _rounded(node["logprobs"]),
        "entropy": _rounded(node["entropy"]),
        "top": [[[token, round(value, 3)] for token, value in entries] for entries in node["top"][:MOST_TOKENS]],
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values[:MOST_TOKENS]]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, None for null and NaN."""
    if pa.types.is_floating(column.type):
        return _known(column.to_numpy())
    found: list[Any] = column.to_pylist()
    return found


def _known(values: NDArray[np.float64]) -> list[float | None]:
    found = values.astype(object)
    found[np.isnan(values)] = None
    known: list[float | None] = found.tolist()
    return known
