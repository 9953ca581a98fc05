"""Rollout graphs from columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from verl_hier.errors import GraphError
from verl_hier.graph.bounded_reading import parse_json
from verl_hier.graph.columnar.layout import EXTRAS, NODE_BOOLS, NODE_INTS, NODE_TEXTS, TASK_JSON
from verl_hier.graph.nodes import RolloutGraph

_AS_THEY_ARE = (
    *(*NODE_INTS, *NODE_BOOLS, *NODE_TEXTS, "reward"),
    *("observation", "action", "logprobs", "entropy", "text", "messages"),
)


def decode(
    tasks: pa.Table, episodes: pa.Table, nodes: pa.Table, uids: Collection[str] | None = None
) -> Iterator[RolloutGraph]:
    """The graphs that some columns were made from. Each of them fits its schema; `check` is left to the caller.

    Args:
        tasks: rows with the columns `TASKS` and `TASK_RECORDS`.
        episodes: rows of all their episodes with the columns `EPISODES` and `EPISODE_DECISION`.
        nodes: rows of all their nodes with the columns `LIGHT` and `HEAVY`.
        uids: tasks whose graphs are wanted, all when omitted.

    Raises:
        GraphError: for tables that do not belong together, and a graph that does not fit its schema.
        FileError: for a decision that is not JSON.
    """
    first_episode = first_node = 0
    for task in tasks.to_pylist():
        mine = episodes.slice(first_episode, task["episodes"]), nodes.slice(first_node, task["nodes"])
        first_episode, first_node = first_episode + task["episodes"], first_node + task["nodes"]
        if uids is not None and task["uid"] not in uids:
            continue
        parts = {"episodes": _episodes(mine[0]), "nodes": node_fields(mine[1])}
        if (len(parts["episodes"]), len(parts["nodes"])) != (task["episodes"], task["nodes"]):
            raise GraphError(
                f"task {task['uid']!r:.60} has fewer rows than its {task['nodes']} nodes and their episodes."
            )
        fields = {name: _parsed(task[name]) for name in TASK_JSON}
        fields |= {name: task[name] for name in ("version", "seed", "short")}
        yield RolloutGraph.from_dict(fields | parts | {"step": task["started"], "credit": []})


def _episodes(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.drop_columns("withheld").to_pylist()
    for number, episode in enumerate(found):
        episode["id"] = number
        episode["reward_info"] = _mapping(episode["reward_info"])
        episode["decision"] = _parsed(episode["decision"])
    return found


def node_fields(table: pa.Table) -> list[dict[str, Any]]:
    """The fields of nodes, by the names that `Node` has for them; `id` is the number of the row.

    Args:
        table: rows with the columns `LIGHT` and `HEAVY`.

    Raises:
        FileError: for a decision that is not JSON.
    """
    found: list[dict[str, Any]] = table.select(_AS_THEY_ARE).to_pylist()
    others = table.select([*EXTRAS, "masks", "top", "policy_low", "policy_high", "decision"]).to_pylist()
    for number, (node, other) in enumerate(zip(found, others, strict=True)):
        node["id"] = number
        node["policy_version"] = [other["policy_low"], other["policy_high"]]
        node["extra"] = {name: value for column in EXTRAS for name, value in _mapping(other[column]).items()}
        masks = _mapping(other["masks"])
        node["masks"] = {name: [[span["start"], span["stop"]] for span in spans] for name, spans in masks.items()}
        node["top"] = [[[entry["token"], entry["logprob"]] for entry in entries] for entries in other["top"]]
        node["decision"] = _parsed(other["decision"])
    return found


def _mapping(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {entry["name"]: entry["value"] for entry in entries}


def _parsed(text: str | None) -> Any:
    return {} if text is None else parse_json(text, "a column of JSON")
