"""The columns of rollout graphs: which there are, of which types, and the tables that they make.

A light column has a few bytes a turn and is what the turn table needs. A heavy one holds tokens, words or decisions.
Numbers of nodes and episodes count within their task. Texts are plain text: Parquet keeps a dictionary of them anyway,
and every reader of Parquet understands the type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa


def _named(value: pa.DataType) -> pa.DataType:
    """The type of a mapping from names, as a list: not every reader of Parquet has mappings."""
    return pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", value)]))


_INT, _FLOAT, _BOOL, _TEXT = pa.int32(), pa.float64(), pa.bool_(), pa.string()
_SPANS = pa.list_(pa.struct([pa.field("start", _INT), pa.field("stop", _INT)]))
_TOP = pa.struct([pa.field("token", _INT), pa.field("logprob", _FLOAT)])
_MESSAGE = pa.struct([pa.field("role", _TEXT), pa.field("content", _TEXT), pa.field("sources", pa.list_(_INT))])

NODE_INTS = ("parent", "context", "episode", "level", "turn", "segment", "plan", "prompt_tokens", "cached_tokens")
NODE_BOOLS = ("partial", "trained", "done", "truncated", "valid")
NODE_TEXTS = ("agent", "role", "policy", "anchor", "stop_reason")
EXTRAS = {"extra_bool": _BOOL, "extra_int": pa.int64(), "extra_float": _FLOAT, "extra_text": _TEXT}
"""Columns of `Node.extra` by the type of their values."""

LIGHT = pa.schema(
    {
        **dict.fromkeys((*NODE_INTS, "n_observation", "n_action"), _INT),
        **dict.fromkeys(("reward", "mean_entropy"), _FLOAT),
        **dict.fromkeys((*NODE_BOOLS, "has_entropy"), _BOOL),
        **dict.fromkeys(NODE_TEXTS, _TEXT),
        **{name: _named(kind) for name, kind in EXTRAS.items()},
        "masks": _named(_SPANS),
    }
)
"""Light columns of nodes. `mean_entropy` is NaN where the server gave neither entropies nor log-probs."""
HEAVY = pa.schema(
    {
        **dict.fromkeys(("observation", "action"), pa.list_(_INT)),
        **dict.fromkeys(("logprobs", "entropy"), pa.list_(_FLOAT)),
        "top": pa.list_(pa.list_(_TOP)),
        **dict.fromkeys(("policy_low", "policy_high"), _INT),
        "text": _TEXT,
        "messages": pa.list_(_MESSAGE),
        "decision": _TEXT,
    }
)
"""Heavy columns of nodes. `decision` is JSON, null for none."""
TOKEN_LISTS = {"logprobs": "logprob", "entropy": "entropy"}
"""Heavy columns with a number a token, and the token columns of the turn table that are made of them."""
EPISODES = pa.schema(
    {
        **dict.fromkeys(("source", "shared", "tree", "leaf"), _INT),
        "status": _TEXT,
        "ret": _FLOAT,
        **dict.fromkeys(("success", "trained", "greedy", "withheld"), _BOOL),
        "error": _TEXT,
        "reward_info": _named(_FLOAT),
    }
)
"""Columns of episodes that metrics and the turn table need."""
EPISODE_DECISION = pa.schema({"decision": _TEXT})
TASKS = pa.schema(
    {"uid": _TEXT, "index": pa.int64(), "data_source": _TEXT, "nodes": pa.int64(), "episodes": pa.int64()}
)
"""Columns of tasks that the turn table needs: `nodes` and `episodes` are their numbers."""
TASK_JSON = ("task", "phase", "request", "counts", "seconds", "budget")
TASK_RECORDS = pa.schema(
    {
        "version": _INT,
        "started": pa.int64(),
        "seed": pa.int64(),
        "short": _BOOL,
        **dict.fromkeys(TASK_JSON, _TEXT),
    }
)
"""Further columns of tasks. `started` is the step whose weights started the rollout; those of `TASK_JSON` are JSON."""

KINDS = ("tasks", "episodes", "nodes")
"""Kinds of the files of a shard."""
_KEYS = {"step": pa.int64(), "uid": _TEXT}


WHOLE = {
    "episodes": pa.unify_schemas([EPISODES, EPISODE_DECISION]),
    "nodes": pa.unify_schemas([LIGHT, HEAVY]),
}
"""Columns from which graphs are decoded."""


def _stored(*schemas: pa.Schema, **others: pa.DataType) -> pa.Schema:
    fields = {field.name: field.type for schema in schemas for field in schema}
    return pa.schema({**_KEYS, **others, **fields})


INDEX = _stored(TASKS, TASK_RECORDS, row_group=_INT, episodes_checksum=pa.int64(), nodes_checksum=pa.int64())
"""Columns of `tasks-….parquet`: `row_group` is that of the task in all three files of its shard, and the checksums are
those of the footers of the other two, which Parquet does not protect."""
STORED = {
    "tasks": INDEX,
    "episodes": _stored(WHOLE["episodes"], episode=_INT),
    "nodes": _stored(WHOLE["nodes"], node=_INT),
}
EXPLAINED = pa.schema({"credit": _FLOAT, "weight": _FLOAT, "group_size": _INT, "logprob_difference": _FLOAT})
"""What training made of a turn: its credit, the mean loss weight of its trained tokens, 0 without one, how many
episodes of its task ended regularly, and the mean |log p(rollout) - log p(training)| of its trained tokens, null
without one. All but the credit are null for rollouts that were converted."""
CREDIT = _stored(EXPLAINED, node=_INT)
NULLABLE = {
    *("anchor", "stop_reason", "error", "success", "index", "seed", "decision"),
    *("weight", "group_size", "logprob_difference"),
    *TASK_JSON,
}
"""Columns that have nulls where there is nothing to say; no other column has any."""


@dataclass(frozen=True)
class Columns:
    """The light columns of some tasks, one task after the other, and a way to the heavy ones.

    Attributes:
        tasks: G rows with the columns `TASKS`.
        episodes: rows of all episodes with the columns `EPISODES`.
        nodes: M rows with the columns `LIGHT`.
        heavy: the column of `HEAVY` with a name, of M entries.
        tokens: those of `TOKEN_LISTS` that can be had.
    """

    tasks: pa.Table
    episodes: pa.Table
    nodes: pa.Table
    heavy: Callable[[str], pa.ChunkedArray]
    tokens: Collection[str] = tuple(TOKEN_LISTS)
