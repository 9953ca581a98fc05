"""Rows for verl's SFT trainer, cut from rollout graphs, and the Parquet file that holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.nodes import Node, RolloutGraph


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


def count_rows(files: Sequence[str | Path]) -> int:
    """Rows of some files together."""
    import pyarrow.parquet as parquet

    return sum(parquet.read_metadata(file).num_rows for file in files)


def key_of(file: Path) -> str | None:
    """The key with which a file of rows was saved; None where there is no file."""
    if not file.is_file():
        return None
    import pyarrow.parquet as parquet

    metadata: dict[bytes, bytes] = parquet.read_schema(file).metadata or {}
    return metadata.get(b"verl_hier.key", b"").decode()


def save(file: Path, rows: Sequence[dict[str, Any]], key: str) -> None:
    """Write rows with a key that says what they were made from; see `key_of`."""
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.Table.from_pylist(list(rows)).replace_schema_metadata({"verl_hier.key": key})
    with atomic_write(file) as beside:
        parquet.write_table(table, beside)
