"""Rollout graphs on disk: stores in columns, a folder a step, and files of JSON objects.

A file has one object a line (`.jsonl`, `.jsonl.gz`), or is Parquet with the objects as texts in a column.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, GraphError, first_line, refusal
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import folder_entries, parquet_rows, parquet_types, parse_json, text_lines
from verl_hier.graph.nodes import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.graph.places import place
from verl_hier.graph.schema import json_schema
from verl_hier.graph.steps import is_step, is_whole, step_folder, write_card

__all__ = ["SUFFIXES", "graph_parts", "json_schema", "read_graphs", "write_graphs", "write_step"]
SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")
GROUPS_TOGETHER = 8
"""Graphs in one row group of a Parquet file: so many are unpacked to read one of them."""


def write_step(store: str | os.PathLike[str], step: int, graphs: Iterable[RolloutGraph]) -> int:
    """Write the rollouts of a trainer step in columns, and return how many there are.

    What the store holds of the step is replaced. The step counts as whole when its last file is written.

    Args:
        store: the folder of the steps or its URL, `hier.store.path` of a recipe.
        step: trainer step.
        graphs: one a task, with their credit.

    Raises:
        GraphError: for two graphs of one task, a value that no file can hold, or an error of the disk; the message
            names the folder.
    """
    from verl_hier.graph.columnar.writing import write_step as write

    folder = step_folder(store, step)
    try:
        count = write(folder, step, graphs)
        write_card(folder.parent)
    except OSError as error:
        raise GraphError(f"cannot write rollout graphs to {folder}: {refusal(error)}.") from error
    except (TypeError, ValueError, OverflowError) as error:  # a plugin left something in `extra` or `decision`
        raise GraphError(f"cannot write rollout graphs to {folder}: {first_line(error)}.") from error
    return count


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
            if target.suffix == ".parquet":
                return _write_parquet(beside, iter(graphs))
            return _write_lines(beside, target.suffix == ".gz", graphs)
    except OSError as error:
        raise GraphError(f"cannot write rollout graphs to {target}: {refusal(error)}.") from error
    except TypeError as error:  # a plugin left something in `extra` or `decision`
        raise GraphError(f"cannot write rollout graphs to {target}: {error}.") from error


def _text(graph: RolloutGraph) -> str:
    """The JSON of `graph.to_dict()`, without a copy of every list of tokens."""
    return json.dumps(graph, separators=(",", ":"), default=_fields)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, RolloutGraph | Node | EpisodeRecord | Message):
        return vars(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _write_lines(file: Path, packed: bool, graphs: Iterable[RolloutGraph]) -> int:
    count = 0
    with (gzip.open if packed else open)(file, "wt", encoding="utf-8") as lines:
        for graph in graphs:
            lines.write(_text(graph) + "\n")
            count += 1
    return count


def _write_parquet(file: Path, graphs: Iterator[RolloutGraph]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"version": pa.int32(), "step": pa.int64(), "uid": pa.string(), "graph": pa.string()}
    count = 0
    # Texts are all different and too long for a dictionary or for statistics.
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False}
    with pq.ParquetWriter(file, pa.schema(kinds), write_statistics=["version", "step"], **options) as writer:
        while members := list(islice(graphs, GROUPS_TOGETHER)):
            columns = {
                "version": [graph.version for graph in members],
                "step": [graph.step for graph in members],
                "uid": [_uid(graph.task) for graph in members],
                "graph": [_text(graph) for graph in members],
            }
            writer.write_table(pa.table(columns, pa.schema(kinds)))
            count += len(members)
    return count


def _uid(task: dict[str, Any]) -> str:
    return str(task.get("uid", ""))


def read_graphs(path: str | os.PathLike[str], uids: Collection[str] | None = None) -> Iterator[RolloutGraph]:
    """Graphs of a file, a step, or all files and whole steps of a directory in name order.

    Each of them fits its schema and `check`.

    Args:
        path: a file, the folder of a step, or a directory of files or steps, such as a store; or the URL of one.
        uids: tasks whose graphs are read, all when omitted. Of Parquet only the parts that hold them are read.

    Raises:
        GraphError: when there is nothing to read, a line is no graph, a newer version wrote it, or a task of `uids` is
            not among them.
    """
    source = place(path)
    missing = set(uids or ())
    try:
        for part in graph_parts(source):
            for graph in _graphs(part, uids):
                missing.discard(_uid(graph.task))
                yield graph
    except FileError as error:
        raise GraphError(str(error)) from error
    if missing:
        raise GraphError(f"{source} holds no rollout graph of task {min(missing)!r:.60}.")


def graph_parts(source: Path) -> list[Path]:
    """The graph files and the folders of whole steps in a directory, in name order; a file or a step is one by itself.

    Raises:
        FileError: when the directory cannot be read.
        GraphError: when there is none in it.
    """
    try:
        if not source.is_dir() or is_step(source):
            return [source]
        found = [entry for entry in folder_entries(source) if is_step(entry) or entry.name.endswith(SUFFIXES)]
        whole = [entry for entry in found if not is_step(entry) or is_whole(entry)]
    except OSError as error:  # of a file system that cannot be reached
        raise FileError(f"{source} cannot be read: {refusal(error)}.") from error
    if not whole:
        raise GraphError(f"{source} holds no rollout graphs (steps of a store, .parquet, .jsonl or .jsonl.gz).")
    return whole


def _graphs(file: Path, uids: Collection[str] | None) -> Iterator[RolloutGraph]:
    if is_step(file):
        from verl_hier.graph.columnar.reading import read_step

        yield from read_step(file, uids)
        return
    number = 0
    for number, line in _numbered(file, uids):
        where = f"{file}, record {number}"
        try:
            data = parse_json(line, where)
            task = data.get("task") if isinstance(data, dict) else None
            if uids is not None and isinstance(task, dict) and _uid(task) not in uids:
                continue
            graph = RolloutGraph.from_dict(data)
            graph.check()
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        yield graph
    if not number and uids is None:
        raise GraphError(f"{file} is empty: it holds no rollout graph.")


def _numbered(file: Path, uids: Collection[str] | None) -> Iterator[tuple[int, str]]:
    """The texts of a file, each with the number of its record from 1; of Parquet those of `uids` alone."""
    if file.suffix != ".parquet":
        yield from enumerate((line for _, line in text_lines(file)), start=1)
        return
    types = parquet_types(file)
    if "graph" not in types:
        raise FileError(f"{file} holds no rollout graphs: it has no column `graph`.")
    places = None
    if uids is not None and types.get("uid") == "string":
        places = [place for place, row in enumerate(parquet_rows(file, ["uid"])) if row["uid"] in uids]
    rows = parquet_rows(file, ["graph"], places)
    for number, row in enumerate(rows) if places is None else zip(places, rows, strict=True):
        if not isinstance(row["graph"], str):
            raise FileError(f"{file} holds no rollout graphs: its column `graph` is not text.")
        yield number + 1, row["graph"]
