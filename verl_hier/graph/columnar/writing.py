"""The rollouts of a step as Parquet files: shards of nodes, episodes and tasks, and the credit, which comes last.

| file | rows | sorted by |
|---|---|---|
| `nodes-<writer>-<n>.parquet` | one a turn, keyed by step, uid and node | task, node |
| `episodes-<writer>-<n>.parquet` | one an episode, keyed by step, uid and episode | task, episode |
| `tasks-<writer>-<n>.parquet` | one a task; the index of the shard, written after the other two | task |
| `credit.parquet` | one a credited turn, keyed by step, uid and node; marks the step as whole | task, node |

Row group k of the three files of a shard holds the same tasks. Every file appears whole or not at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.columnar.encode import encode, encode_decisions, encode_heavy, encode_records, uid_of
from verl_hier.graph.columnar.layout import CREDIT, INDEX, KINDS, STORED
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.steps import MARK

TURNS_TOGETHER = 2_500
"""Turns in a row group, from which on the next task begins another one: so many are unpacked to read one of them."""
GROUPS_TOGETHER = 32
"""Row groups in a shard; what describes them is read as a whole."""
_SPLIT = ("observation", "action", "logprobs", "entropy")
"""Columns of many different numbers, whose first bytes are alike, and so on."""
_WORDS = ("uid", "agent", "role", "policy", "anchor", "stop_reason", "status", "data_source")
"""Texts that come up again and again."""
Writers = dict[str, pq.ParquetWriter]


def write_step(folder: Path, step: int, graphs: Iterable[RolloutGraph], writer: str = "trainer") -> int:
    """Write the rollouts of a step, in place of what the folder holds, and return how many tasks there are.

    Args:
        folder: of the step.
        step: trainer step that trained them; the first key of every row.
        graphs: one a task, with their credit.
        writer: part of the names of the files.

    Raises:
        OSError: when the disk refuses.
        TypeError: for a value that JSON cannot represent.
        OverflowError: for a number that does not fit its column.
        ValueError: for two graphs of one task.
    """
    for old in (folder / MARK, *folder.glob("*-*-*.parquet")):
        old.unlink(missing_ok=True)
    known: list[str] = []
    credit: list[pa.Table] = []
    for number, shard in enumerate(_shards(_groups(graphs, known, credit, step))):
        _write_shard(folder, f"{writer}-{number}", step, shard)
    found = pa.concat_tables([CREDIT.empty_table(), *credit])
    with atomic_write(folder / MARK) as beside:
        counted = found.replace_schema_metadata({"tasks": str(len(known))})
        pq.write_table(counted, beside, compression="zstd", compression_level=1, write_page_checksum=True)
    return len(known)


def footer_checksum(file: Path) -> int:
    """The checksum of the part of a Parquet file that describes its pages, which has none of its own.

    Raises:
        OSError: when the file cannot be read.
    """
    with file.open("rb") as content:
        size = content.seek(0, 2)
        content.seek(max(size - 8, 0))
        length = int.from_bytes(content.read(4), "little")
        content.seek(max(size - 8 - length, 0))
        return zlib.crc32(content.read())


def _groups(
    graphs: Iterable[RolloutGraph], known: list[str], credit: list[pa.Table], step: int
) -> Iterator[list[RolloutGraph]]:
    """The graphs of each row group; their uids and credit are added to the lists."""
    members: list[RolloutGraph] = []
    seen: set[str] = set()
    turns = 0
    for graph in graphs:
        uid = uid_of(graph)
        if uid in seen:
            raise ValueError(f"step {step} has two graphs of task {uid!r:.60}")
        seen.add(uid)
        known.append(uid)
        if graph.credit:
            credit.append(_credit(graph, step))
        members.append(graph)
        turns += len(graph.nodes)
        if turns >= TURNS_TOGETHER:
            yield members
            members, turns = [], 0
    if members:
        yield members


def _shards(groups: Iterator[list[RolloutGraph]]) -> Iterator[Iterator[list[RolloutGraph]]]:
    """The row groups of each shard; each shard is to be used up before the next one."""
    for first in groups:

        def shard(first: list[RolloutGraph] = first) -> Iterator[list[RolloutGraph]]:
            yield first
            for _, group in zip(range(GROUPS_TOGETHER - 1), groups, strict=False):
                yield group

        yield shard()


def _credit(graph: RolloutGraph, step: int) -> pa.Table:
    count = len(graph.credit)
    keys = {"step": np.full(count, step), "uid": pa.repeat(uid_of(graph), count), "node": np.arange(count)}
    return pa.table({**keys, "credit": np.asarray(graph.credit, np.float64)}, CREDIT)


def _write_shard(folder: Path, name: str, step: int, groups: Iterable[Sequence[RolloutGraph]]) -> None:
    tasks = []
    with ExitStack() as closing:
        files = {kind: folder / f"{kind}-{name}.parquet" for kind in KINDS}
        beside = {kind: closing.enter_context(atomic_write(files[kind])) for kind in ("episodes", "nodes")}
        with ExitStack() as writing:
            writers = {kind: writing.enter_context(_open(path, kind)) for kind, path in beside.items()}
            for number, graphs in enumerate(groups):
                tasks.append(_write_group(writers, step, number, graphs))
        sums = {f"{kind}_checksum": footer_checksum(path) for kind, path in beside.items()}
    with atomic_write(files["tasks"]) as target, _open(target, "tasks") as writer:
        for part in tasks:
            checksums = {name: [value] * len(part) for name, value in sums.items()}
            writer.write_table(_beside(INDEX, part, pa.table(checksums)))


def _open(path: Path, kind: str) -> pq.ParquetWriter:
    schema = STORED[kind]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        write_page_checksum=True,
        use_dictionary=[name for name in _WORDS if name in schema.names],
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _SPLIT if name in schema.names},
        write_statistics=["step", "uid"],
    )


def _write_group(writers: Writers, step: int, number: int, graphs: Sequence[RolloutGraph]) -> pa.Table:
    """Write a row group of nodes and of episodes, and return the rows of their tasks."""
    columns = encode(graphs)
    records = [episode for graph in graphs for episode in graph.episodes]
    nodes = [node for graph in graphs for node in graph.nodes]
    uids = columns.tasks["uid"]
    for kind, key, lists, parts in (
        ("episodes", "episode", [graph.episodes for graph in graphs], [columns.episodes, encode_decisions(records)]),
        ("nodes", "node", [graph.nodes for graph in graphs], [columns.nodes, encode_heavy(nodes)]),
    ):
        counts = [len(each) for each in lists]
        keys = {
            "step": pa.repeat(step, sum(counts)),
            "uid": uids.take(pa.array(np.repeat(np.arange(len(graphs)), counts))),
            key: np.concatenate([np.arange(count) for count in counts]),
        }
        writers[kind].write_table(_beside(STORED[kind], pa.table(keys), *parts), row_group_size=max(sum(counts), 1))
    keys = {"step": [step] * len(graphs), "row_group": [number] * len(graphs)}
    return pa.table(_columns(pa.table(keys), columns.tasks, encode_records(graphs)))


def _columns(*tables: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {name: table[name] for table in tables for name in table.column_names}


def _beside(schema: pa.Schema, *tables: pa.Table) -> pa.Table:
    """One table with the columns of all, of the types of a schema."""
    found = _columns(*tables)
    return pa.table([found[name].cast(schema.field(name).type) for name in schema.names], schema)
