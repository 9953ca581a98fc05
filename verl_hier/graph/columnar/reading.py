"""Stored steps: which there are, their rollouts as graphs or as columns, and single tasks by the index."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from verl_hier.errors import FileError, GraphError
from verl_hier.graph.bounded_reading import GROWTH, SMALL, folder_entries, parquet_metadata, parquet_table
from verl_hier.graph.columnar.checks import check_columns
from verl_hier.graph.columnar.decode import decode
from verl_hier.graph.columnar.layout import (
    CREDIT,
    EPISODES,
    HEAVY,
    INDEX,
    KINDS,
    LIGHT,
    TASKS,
    WHOLE,
    Columns,
)
from verl_hier.graph.columnar.writing import footer_checksum
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.records import SCHEMA_VERSION
from verl_hier.graph.steps import MARK

_CHECKED = pa.schema([INDEX.field(name) for name in ("version", "episodes_checksum", "nodes_checksum")])
_CREDITED = pa.schema([CREDIT.field(name) for name in ("uid", "node", "credit")])
_LOOKED_UP = pa.schema([INDEX.field(name) for name in ("uid", "row_group")])


@dataclass(frozen=True)
class Shard:
    """Three files that hold the same tasks; see `writing`.

    Attributes:
        folder: of the step.
        name: what follows the kind in the names of the files.
    """

    folder: Path
    name: str

    def file(self, kind: str) -> Path:
        """The file of a kind: `tasks`, `episodes` or `nodes`."""
        return self.folder / f"{kind}-{self.name}.parquet"

    def tables(self, groups: Sequence[int] | None = None, **schemas: pa.Schema) -> list[pa.Table]:
        """Columns of the files of each kind in `schemas`, in the order of `KINDS`.

        Args:
            groups: row groups to read; None for all.
            schemas: columns to read, by kind.

        Raises:
            FileError: for a file that is damaged, or does not belong to the others.
        """
        wanted = schemas.get("tasks", _CHECKED)
        index = parquet_table(self.file("tasks"), pa.unify_schemas([wanted, _CHECKED]), groups)
        newest = max(index["version"].to_pylist(), default=0)
        if newest > SCHEMA_VERSION:
            raise FileError(
                f"{self.file('tasks')} has schema version {newest}, this verl-hier reads up to {SCHEMA_VERSION}; "
                "upgrade it."
            )
        found = {}
        for kind in schemas.keys() - {"tasks"}:
            try:
                checksum = footer_checksum(self.file(kind))
            except OSError as error:
                raise FileError(f"{self.file(kind)} cannot be read: {error.strerror}.") from error
            if {checksum} != {*index[f"{kind}_checksum"].to_pylist()}:
                raise FileError(f"{self.file(kind)} is damaged, or is not the one that its index was written for.")
            found[kind] = parquet_table(self.file(kind), schemas[kind], groups)
        return [{"tasks": index.select(wanted.names), **found}[kind] for kind in KINDS if kind in schemas]


def shards(folder: Path) -> list[Shard]:
    """The shards of a step.

    Raises:
        GraphError: when the step is not whole.
    """
    if not (folder / MARK).exists():
        raise GraphError(f"{folder} was not written to its end: it has no {MARK}.")
    names = (re.fullmatch(r"tasks-(\w+)-(\d+)\.parquet", entry.name) for entry in folder_entries(folder))
    ordered = sorted((found[1], int(found[2])) for found in names if found)
    return [Shard(folder, f"{writer}-{number}") for writer, number in ordered]


def read_step(folder: Path, uids: Collection[str] | None = None) -> Iterator[RolloutGraph]:
    """The graphs of a step, each of which fits its schema and `check`.

    Args:
        folder: of the step.
        uids: tasks whose graphs are read, all when omitted; only the row groups that hold them are.

    Raises:
        GraphError: when the step is not whole, or a graph breaks its schema.
        FileError: when a file is damaged.
    """
    known = shards(folder)
    credit = _Credit(folder)
    count = 0
    for shard in known:
        for groups in _row_groups(shard, uids):
            tables = shard.tables(groups, tasks=INDEX, **WHOLE)
            yield from _graphs(shard, tables, uids, credit)
            count += len(tables[0])
    if uids is None:
        _require_tasks(folder, count)


def read_columns(folder: Path) -> tuple[int, Columns]:
    """The step of a folder and its light columns; a heavy one is read when it is asked for.

    Raises:
        GraphError: when the step is not whole, or no turn table can be made of its columns.
        FileError: when a file is damaged.
    """
    known = shards(folder)
    parts = [shard.tables(tasks=TASKS, episodes=EPISODES, nodes=LIGHT) for shard in known]
    tasks, episodes, nodes = (
        pa.concat_tables([pa.Table.from_batches([], schema), *(part[place] for part in parts)]).combine_chunks()
        for place, schema in enumerate((TASKS, EPISODES, LIGHT))
    )
    _require_tasks(folder, len(tasks))
    size = sum(shard.file("nodes").stat().st_size for shard in known)
    tokens = pc.sum(nodes["n_action"]).as_py() or 0
    if tokens * 4 > max(SMALL, GROWTH * size):
        raise FileError(f"{folder} is too large: it says that it has {tokens} tokens, of which it cannot hold as many.")
    columns = Columns(tasks, episodes, nodes, partial(_heavy, known, nodes["n_action"]))
    try:
        check_columns(columns)
    except GraphError as error:
        raise GraphError(f"{folder}: {error}") from error
    return int(folder.name.rpartition("_")[2]), columns


def _heavy(known: Sequence[Shard], n_action: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A heavy column of lists of numbers of tokens."""
    schema = pa.schema([HEAVY.field(name)])
    parts = [shard.tables(nodes=schema)[0][name].chunks for shard in known]
    found = pa.chunked_array([chunk for chunks in parts for chunk in chunks], HEAVY.field(name).type)
    lengths = pc.list_value_length(found).to_numpy()
    if not ((lengths == 0) | (lengths == n_action.to_numpy())).all():
        raise GraphError(f"{known[0].folder}: a node has another number of {name} than of tokens.")
    return found


def _row_groups(shard: Shard, uids: Collection[str] | None) -> Iterator[list[int]]:
    """Each row group that is to be read, one at a time, so that a shard needs the memory of one."""
    if uids is None:
        yield from ([number] for number in range(parquet_metadata(shard.file("tasks")).num_row_groups))
        return
    index = parquet_table(shard.file("tasks"), _LOOKED_UP)
    wanted = index.filter(pc.is_in(index["uid"], value_set=pa.array(list(uids), pa.string())))
    yield from ([number] for number in sorted(set(wanted["row_group"].to_pylist())))


def _graphs(
    shard: Shard, tables: Sequence[pa.Table], uids: Collection[str] | None, credit: _Credit
) -> Iterator[RolloutGraph]:
    try:
        tasks, episodes, nodes = tables
        for graph in decode(tasks, episodes, nodes, uids):
            graph.credit = credit.of(str(graph.task["uid"]))
            graph.check()
            yield graph
    except GraphError as error:
        raise GraphError(f"{shard.file('nodes')}: {error}") from error


class _Credit:
    """The credit of a whole step, by task."""

    def __init__(self, folder: Path) -> None:
        file = folder / MARK
        table = parquet_table(file, _CREDITED)
        values = table["credit"].to_numpy()
        if not np.isfinite(values).all() or table["uid"].null_count:
            raise GraphError(f"{file} has a credit that is not a finite number, or of no task.")
        known = pc.unique(table["uid"])
        task = pc.index_in(table["uid"], value_set=known).to_numpy()
        order = np.lexsort((table["node"].to_numpy(), task))
        ends = np.cumsum(np.bincount(task, minlength=len(known)))
        self._values = dict(zip(known.to_pylist(), np.split(values[order], ends[:-1]), strict=len(known) > 0))

    def of(self, uid: str) -> list[float]:
        """The credit of each node of a task; empty where none was stored."""
        found: list[float] = self._values[uid].tolist() if uid in self._values else []
        return found


def _require_tasks(folder: Path, count: int) -> None:
    """Refuse a step of which a shard is missing."""
    said = (parquet_metadata(folder / MARK).metadata or {}).get(b"tasks", b"")
    if said != str(count).encode():
        raise GraphError(f"{folder} has {count} tasks, and {said.decode(errors='replace')} were written.")
