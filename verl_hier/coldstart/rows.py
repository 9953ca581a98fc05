"""Rows for verl's SFT trainer, cut from rollout graphs, and the Parquet file that holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import parquet_metadata, parquet_rows, parquet_types
from verl_hier.graph.nodes import Node, RolloutGraph

_COLUMNS = {"input_ids": "int", "weights": "float double"}
"""Columns of demonstrations, and words of the type of their items."""


def rows_of(
    graph: RolloutGraph, action_weight: Callable[[Node], float], observation_weight: float
) -> list[dict[str, Any]]:
    """One row for each context: `{input_ids, weights, role}` from the first observation to the last action.

    Args:
        graph: graph of one episode.
        action_weight: loss weight of the action tokens of a turn.
        observation_weight: loss weight of tokens that the policy does not generate.
    """
    rows: dict[int, dict[str, Any]] = {}
    for node in graph.nodes:
        row = rows.pop(node.context, None) if node.context >= 0 else None
        row = row or {"input_ids": [], "weights": [], "role": node.role}
        row["input_ids"] += [*node.observation, *node.action]
        row["weights"] += [observation_weight] * len(node.observation) + [action_weight(node)] * len(node.action)
        rows[node.id] = row
    for row in rows.values():
        # Nothing predicts a first token; verl shifts weights across the borders of rows, so it must be zero.
        row["weights"][0] = 0.0
    return list(rows.values())


def read_rows(files: Sequence[str | Path], vocabulary: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of files of demonstrations, `{input_ids, weights}`, one list each.

    Args:
        files: Parquet files with these two columns.
        vocabulary: how many tokens the model knows; None where that is not known.

    Raises:
        RecipeError: for a file that is none or has no such rows, and for a row that has not one finite weight of at
            least 0 for each token, or a token that the model does not know.
        FileError: for a file whose pages, or what it says of its columns, are damaged.
    """
    for file in map(Path, files):
        _require_columns(file)
        for number, row in enumerate(parquet_rows(file, list(_COLUMNS))):
            if problem := _problem(row["input_ids"], row["weights"], vocabulary):
                raise RecipeError(f"{file}: row {number} is no demonstration: {problem}.")
            yield row


def _require_columns(file: Path) -> None:
    try:
        types, rows = parquet_types(file), parquet_metadata(file).num_rows
    except FileError as error:
        raise RecipeError(f"{file} is not a Parquet file of demonstrations: {error}") from error
    missing = [name for name in _COLUMNS if name not in types]
    if missing or not rows:
        reason = f"it has no column {missing[0]!r}" if missing else "it is empty"
        raise RecipeError(f"{file} holds no demonstrations: {reason}; `verl-hier demos RECIPE` writes them.")
    for name, item in _COLUMNS.items():
        kind = types[name]
        if not kind.startswith(("list<", "large_list<")) or not any(word in kind for word in item.split()):
            raise RecipeError(f"{file} holds no demonstrations: its column {name!r} is {kind}, not lists of numbers.")


def _problem(tokens: list[Any] | None, weights: list[Any] | None, vocabulary: int | None) -> str | None:
    if not tokens or None in tokens:
        return "it has no tokens, or gaps between them"
    if weights is None or len(weights) != len(tokens) or None in weights:
        return "it has not one weight for each token"
    if min(tokens) < 0 or (vocabulary is not None and max(tokens) >= vocabulary):
        known = "" if vocabulary is None else f" below {vocabulary}, the size of the model's vocabulary"
        return f"its tokens lie between {min(tokens)} and {max(tokens)}, and must be numbers from 0{known}"
    if not all(0 <= weight < math.inf for weight in weights):
        return "a weight is not a finite number of at least 0"
    return None


def key_of(file: Path) -> str | None:
    """The key with which a file of rows was saved; None where there is no file, or a damaged one."""
    if not file.is_file():
        return None
    import pyarrow.parquet as parquet

    try:
        metadata: dict[bytes, bytes] = parquet.read_schema(file).metadata or {}
    except (OSError, ValueError):  # pyarrow's ArrowInvalid is a ValueError
        return None
    return metadata.get(b"verl_hier.key", b"").decode()


def save(file: Path, rows: Sequence[dict[str, Any]], key: str) -> None:
    """Write rows with a key that says what they were made from; see `key_of`."""
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.Table.from_pylist(list(rows)).replace_schema_metadata({"verl_hier.key": key})
    with atomic_write(file) as beside:
        parquet.write_table(table, beside)
