"""The JSON schema of the rows of a store, made of the layout of its columns; `columns.json` beside is what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from verl_hier.graph.columnar.layout import CREDIT, NULLABLE, STORED, TASK_JSON
from verl_hier.graph.records import SCHEMA_VERSION
from verl_hier.graph.schema import json_schema

_KEYS = {
    "step": "Trainer step that trained the rollout.",
    "uid": "verl's uid of the task; the group.",
}
_MEANINGS: Mapping[str, Mapping[str, str]] = {
    "tasks": {
        "row_group": "Row group of the task in all three files of its shard.",
        "episodes_checksum": "CRC-32 of the footer of the shard's file of episodes.",
        "nodes_checksum": "CRC-32 of the footer of the shard's file of nodes.",
        "index": "Position in the data set; null where the data set has none.",
        "data_source": "verl's data source.",
        "nodes": "How many rows the task has among the nodes.",
        "episodes": "How many rows the task has among the episodes.",
        "started": "Trainer step whose weights started the rollout.",
    },
    "episodes": {
        "episode": "Number of the episode within its task.",
        "withheld": "A leaf that was evaluated and not kept: its return counts for the turns that it shares.",
    },
    "nodes": {
        "node": "Number of the node within its task.",
        "n_observation": "Number of tokens of `observation`.",
        "n_action": "Number of tokens of `action`.",
        "mean_entropy": "Mean of `entropy`, or of -log p where there is none; NaN without either.",
        "has_entropy": "Whether the server gave `entropy`.",
        "policy_low": "Lowest weight version that sampled the action.",
        "policy_high": "Highest weight version that sampled the action.",
        **{
            f"extra_{kind}": f"What workers and environments noted of the turn, by name: {values}."
            for kind, values in {"bool": "bools", "int": "integers", "float": "numbers", "text": "texts"}.items()
        },
    },
    "credit": {
        "node": "Number of the node within its task.",
        "credit": "What the estimator gave to the turn.",
        "weight": "Mean loss weight of the turn's trained tokens, 0 without one; null for converted rollouts.",
        "group_size": "How many episodes of the task ended regularly; null for converted rollouts.",
        "logprob_difference": "Mean |log p(rollout) - log p(training)| of the turn's trained tokens; null without one.",
    },
}


def columns_schema() -> dict[str, Any]:
    """The JSON schema of a row of the store: `$defs` has one of each kind of file, and a row fits one of them.

    The keyword `arrow` of a column is its type in the file.
    """
    graph = json_schema()
    alike = {"tasks": graph, "episodes": graph["$defs"]["episode"], "nodes": graph["$defs"]["node"], "credit": {}}
    kinds = {}
    for kind, schema in {**STORED, "credit": CREDIT}.items():
        described = {name: field["description"] for name, field in alike[kind].get("properties", {}).items()}
        meanings = {**described, **_KEYS, **_MEANINGS[kind]}
        kinds[kind] = {
            "type": "object",
            "properties": {field.name: _column(field, meanings[field.name]) for field in schema},
            "required": schema.names,
            "additionalProperties": False,
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"verl-hier stored rollouts, version {SCHEMA_VERSION}",
        "description": "A row of the Parquet files of a step, as `Table.to_pylist()` of pyarrow gives it.",
        "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": kinds,
    }


def _column(field: pa.Field, meaning: str) -> dict[str, Any]:
    shape = _shape(field.type)
    if field.name in NULLABLE:
        shape["type"] = [shape["type"], "null"]
    if field.name in {*TASK_JSON, "decision"}:
        shape["contentMediaType"] = "application/json"
    return {"description": meaning, "arrow": _words(field.type), **shape}


def _shape(kind: pa.DataType) -> dict[str, Any]:
    """The JSON schema of the values of a type."""
    if pa.types.is_list(kind):
        return {"type": "array", "items": _shape(kind.value_type)}
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        parts = {field.name: _shape(field.type) for field in kind}
        return {"type": "object", "properties": parts, "required": names, "additionalProperties": False}
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return {"type": "integer", "minimum": -most, "maximum": most - 1}
    plain = {pa.float64(): "number", pa.bool_(): "boolean", pa.string(): "string"}
    return {"type": plain[kind]}


def _words(kind: pa.DataType) -> str:
    """The name of a type without the names of what a list holds."""
    if pa.types.is_list(kind):
        return f"list of {_words(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"({', '.join(f'{field.name} {_words(field.type)}' for field in kind)})"
    return str(kind)
