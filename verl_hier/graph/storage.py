"""Rollout graphs on disk: one JSON object a line (`.jsonl`, `.jsonl.gz`), or Parquet with it in a column."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_hier.errors import FileError, GraphError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import folder_entries, parquet_columns, parquet_rows, parse_json, text_lines
from verl_hier.graph.nodes import SCHEMA_VERSION, RolloutGraph
from verl_hier.graph.schema import json_schema

__all__ = ["SUFFIXES", "json_schema", "read_graphs", "write_graphs"]
SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")


def write_graphs(path: str | os.PathLike[str], graphs: Iterable[RolloutGraph]) -> int:
    """Write graphs to `path` by its suffix and return how many. The file appears whole or not at all.

    Raises:
        GraphError: for an unknown suffix, a value that JSON cannot represent, or an error of the disk; the message
            names the file.
    """
    target = Path(path)
    if not target.name.endswith(SUFFIXES):
        raise GraphError(f"{target} has no known suffix: use .parquet, .jsonl or .jsonl.gz.")
    try:
        with atomic_write(target) as beside:
            return _write(target, beside, list(graphs))
    except OSError as error:
        raise GraphError(f"cannot write rollout graphs to {target}: {error.strerror or error}.") from error
    except TypeError as error:  # a plugin left something in `extra` or `decision`
        raise GraphError(f"cannot write rollout graphs to {target}: {error}.") from error


def _write(target: Path, beside: Path, graphs: list[RolloutGraph]) -> int:
    lines = [json.dumps(graph.to_dict(), separators=(",", ":")) for graph in graphs]
    if target.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table(
            {
                "version": pa.array([SCHEMA_VERSION] * len(graphs), pa.int32()),
                "step": pa.array([graph.step for graph in graphs], pa.int64()),
                "uid": pa.array([str(graph.task.get("uid", "")) for graph in graphs]),
                "graph": pa.array(lines),
            }
        )
        pq.write_table(table, beside, compression="zstd", write_page_checksum=True)
    else:
        opener = gzip.open if target.suffix == ".gz" else open
        with opener(beside, "wt", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    return len(lines)


def read_graphs(path: str | os.PathLike[str]) -> Iterator[RolloutGraph]:
    """Graphs of a file, or of every graph file of a directory in name order. Each of them fits its schema and `check`.

    Raises:
        GraphError: when there is nothing to read, a line is no graph, or a newer version wrote it.
    """
    source = Path(path)
    try:
        if source.is_dir():
            files = [entry for entry in folder_entries(source) if entry.name.endswith(SUFFIXES)]
            if not files:
                raise GraphError(f"{source} holds no rollout graphs (.parquet, .jsonl or .jsonl.gz).")
        else:
            files = [source]
        for file in files:
            yield from _graphs(file)
    except FileError as error:
        raise GraphError(str(error)) from error


def _graphs(file: Path) -> Iterator[RolloutGraph]:
    number = 0
    for number, line in enumerate(_lines(file), start=1):
        where = f"{file}, record {number}"
        try:
            graph = RolloutGraph.from_dict(parse_json(line, where))
            graph.check()
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        yield graph
    if not number:
        raise GraphError(f"{file} is empty: it holds no rollout graph.")


def _lines(file: Path) -> Iterator[str]:
    if file.suffix != ".parquet":
        yield from (line for _, line in text_lines(file))
        return
    if "graph" not in parquet_columns(file):
        raise FileError(f"{file} holds no rollout graphs: it has no column `graph`.")
    for row in parquet_rows(file, ["graph"]):
        if not isinstance(row["graph"], str):
            raise FileError(f"{file} holds no rollout graphs: its column `graph` is not text.")
        yield row["graph"]
