"""Rollout graphs as chat messages: what verl's multi-turn SFT data set and most chat tools read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verl_hier.errors import GraphError
from verl_hier.graph.nodes import CONTINUED, Node, RolloutGraph
from verl_hier.graph.rows import chains


def conversation(graph: RolloutGraph, node: int) -> list[dict[str, str]]:
    """The messages of a context up to `node`, its own text the last: `{"role", "content"}` each.

    The pieces of a turn, and text that a worker inserts between them (`Context.extend`), are one message.
    """
    found: list[dict[str, str]] = []
    goes_on = False
    for number in graph.chain(node):
        turn = graph.nodes[number]
        for message in turn.messages:
            goes_on = message.role == CONTINUED and bool(found)
            _append(found, message.role, message.content, goes_on)
        _append(found, "assistant", turn.text, goes_on)
        goes_on = turn.partial
    return found


def chat_rows(graph: RolloutGraph) -> Iterator[dict[str, Any]]:
    """One line for each context of the complete episodes; a context that several episodes share is one line.

    Yields:
        `messages`, see `conversation`; `uid`, `index`, `data_source` and `step` of the task; `agent`, `role` and
        `level` of the last turn; `episodes` that hold it, the mean of their `return` and of their `success` (None when
        the environment does not say); `nodes`: its turns, and for each of them one of `rewards` and of `credit` (None
        before an estimator ran).

    Raises:
        GraphError: when an older version wrote the graph, which kept no messages.
    """
    require_messages(graph)
    owners: dict[tuple[int, ...], list[int]] = {}
    for episode in graph.complete():
        for chain in chains(graph, episode.id):
            owners.setdefault(tuple(chain), []).append(episode.id)
    for row, episodes in owners.items():
        yield _line(graph, row, episodes)


def require_messages(graph: RolloutGraph) -> None:
    """Refuse a graph without messages.

    Raises:
        GraphError: when an older version wrote the graph, which kept none.
    """
    if graph.nodes and not any(node.messages for node in graph.nodes):
        raise GraphError(
            f"the graph of task {graph.task.get('uid')} keeps no messages, as those of schema version 1; roll it out "
            "again with this version (`hier.store.path`)."
        )


def _append(found: list[dict[str, str]], role: str, content: str, goes_on: bool) -> None:
    if goes_on:
        found[-1]["content"] += content
    else:
        found.append({"role": role, "content": content})


def _line(graph: RolloutGraph, row: tuple[int, ...], episodes: list[int]) -> dict[str, Any]:
    last = graph.nodes[row[-1]]
    turns = [graph.pieces(graph.nodes[i]) for i in row if not graph.nodes[i].partial or i == row[-1]]
    records = [graph.episodes[i] for i in episodes]
    won = [float(record.success) for record in records if record.success is not None]
    return {
        "messages": conversation(graph, last.id),
        "uid": str(graph.task.get("uid", "")),
        "index": graph.task.get("index"),
        "data_source": graph.task.get("data_source"),
        "step": graph.step,
        "agent": last.agent,
        "role": last.role,
        "level": last.level,
        "episodes": episodes,
        "return": sum(record.ret for record in records) / len(records),
        "success": sum(won) / len(won) if won else None,
        "nodes": [pieces[-1].id for pieces in turns],
        "rewards": [float(sum(piece.reward for piece in pieces)) for pieces in turns],
        "credit": [_credit(graph, pieces) for pieces in turns] if graph.credit else None,
    }


def _credit(graph: RolloutGraph, pieces: list[Node]) -> float:
    """Mean over the tokens of a turn, as its pieces have been given it."""
    tokens = sum(len(piece.action) for piece in pieces)
    return sum(graph.credit[piece.id] * len(piece.action) for piece in pieces) / tokens
