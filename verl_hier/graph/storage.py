"""Rollout graphs on disk: one JSON object a line (`.jsonl`, `.jsonl.gz`), or Parquet with it in a column."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from verl_hier.errors import GraphError, first_line
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.nodes import SCHEMA_VERSION, RolloutGraph

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")
_ADDED = {2: ("message", "node.messages"), 3: ("node.policy", "episode.reward_info", "graph.seconds")}
"""Schema version to the definitions and properties that it added to the one before."""


def json_schema(version: int = SCHEMA_VERSION) -> dict[str, Any]:
    """The published JSON schema of one graph: the package ships the newest, older ones lack what was added since.

    Args:
        version: 1 to `SCHEMA_VERSION`.

    Raises:
        GraphError: when there is no such version.
    """
    if not 1 <= version <= SCHEMA_VERSION:
        raise GraphError(f"there is no schema version {version}; this verl-hier knows 1 to {SCHEMA_VERSION}.")
    text = resources.files("verl_hier.graph").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    schema["title"] = f"verl-hier rollout graph, version {version}"
    schema["properties"]["version"]["const"] = version
    for added in (name for later, names in _ADDED.items() if later > version for name in names):
        home, _, name = added.partition(".")
        if not name:
            del schema["$defs"][home]
            continue
        block = schema if home == "graph" else schema["$defs"][home]
        del block["properties"][name]
        block["required"].remove(name)
    return schema


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
        pq.write_table(table, beside, compression="zstd")
    else:
        opener = gzip.open if target.suffix == ".gz" else open
        with opener(beside, "wt", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    return len(lines)


def read_graphs(path: str | os.PathLike[str]) -> Iterator[RolloutGraph]:
    """Graphs of a file, or of every graph file of a directory in name order.

    Raises:
        GraphError: when there is nothing to read, a line is no graph, or a newer version wrote it.
    """
    source = Path(path)
    if source.is_dir():
        files = sorted(p for p in source.iterdir() if p.name.endswith(SUFFIXES))
        if not files:
            raise GraphError(f"{source} holds no rollout graphs (.parquet, .jsonl or .jsonl.gz).")
        for file in files:
            yield from read_graphs(file)
        return
    if not source.exists():
        raise GraphError(f"there is no file {source}.")
    empty = True
    for number, line in enumerate(_lines(source), start=1):
        empty = False
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise GraphError(f"{source}, record {number} is not JSON: {error.msg}.") from error
        try:
            yield RolloutGraph.from_dict(data)
        except GraphError as error:
            raise GraphError(f"{source}, record {number}: {error}") from error
    if empty:
        raise GraphError(f"{source} is empty: it holds no rollout graph.")


def _lines(source: Path) -> Iterator[str]:
    if source.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            yield from pq.read_table(source, columns=["graph"]).column("graph").to_pylist()
        except Exception as error:  # pyarrow raises several unrelated types for damaged files
            raise GraphError(f"{source} is not a Parquet file of rollout graphs: {first_line(error)}.") from error
        return
    opener = gzip.open if source.suffix == ".gz" else open
    try:
        with opener(source, "rt", encoding="utf-8") as file:
            yield from (line for line in file if line.strip())
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise GraphError(f"cannot read rollout graphs from {source}: {first_line(error)}.") from error
