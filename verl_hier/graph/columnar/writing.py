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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.columnar.encode import Whole, beside, encode_whole, uid_of
from verl_hier.graph.columnar.layout import CREDIT, EXPLAINED, INDEX, KINDS, STORED
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
Explained = Mapping[str, Sequence[float] | NDArray[Any]]
"""Columns of `EXPLAINED` by name, `credit` among them."""
Task = TypeVar("Task")


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
    clear_step(folder)
    credit: dict[str, Explained] = {}

    def noted() -> Iterator[RolloutGraph]:
        for graph in graphs:
            if uid_of(graph) in credit:
                raise ValueError(f"step {step} has two graphs of task {uid_of(graph)!r:.60}")
            credit[uid_of(graph)] = {"credit": graph.credit}
            yield graph

    groups = _groups(noted(), lambda graph: len(graph.nodes))
    write_shards(folder, step, ([encode_whole(members)] for members in groups), writer)
    write_credit(folder, step, len(credit), credit)
    return len(credit)


def clear_step(folder: Path) -> None:
    """Remove what the folder of a step holds, its mark first.

    Raises:
        OSError: when the disk refuses.
    """
    for old in (folder / MARK, *folder.glob("*-*-*.parquet")):
        old.unlink(missing_ok=True)


def write_tasks(folder: Path, step: int, tasks: Iterable[Whole], writer: str) -> int:
    """Write shards of a step, and return how many tasks they hold; the mark of the step is left to others.

    Args:
        folder: of the step.
        step: trainer step that trained them.
        tasks: of one task each.
        writer: part of the names of the files; no other writer of the step has it.

    Raises:
        OSError: when the disk refuses.
    """
    return write_shards(folder, step, _groups(tasks, lambda task: len(task.nodes)), writer)


def write_shards(folder: Path, step: int, groups: Iterable[Sequence[Whole]], writer: str) -> int:
    """`write_tasks` of given row groups."""
    shards = enumerate(_shards(iter(groups)))
    return sum(_write_shard(folder, f"{writer}-{number}", step, shard) for number, shard in shards)


def write_credit(folder: Path, step: int, tasks: int, credit: Mapping[str, Explained]) -> None:
    """Write the credit of a step, which marks it as whole.

    Args:
        folder: of the step.
        step: trainer step.
        tasks: how many tasks the shards hold.
        credit: uid to columns of `EXPLAINED` with an entry for each node of the task; those that are left out are null,
            as is NaN.

    Raises:
        OSError: when the disk refuses.
    """
    counts = np.fromiter((len(each["credit"]) for each in credit.values()), np.int64, len(credit))
    owner = np.repeat(np.arange(len(credit)), counts)
    columns = {
        "step": np.full(len(owner), step),
        "uid": pa.array(list(credit), pa.string()).take(pa.array(owner)),
        "node": np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts),
    }
    for field in EXPLAINED:
        parts = [
            pa.array(each[field.name], field.type, from_pandas=True)
            if field.name in each
            else pa.nulls(len(each["credit"]), field.type)
            for each in credit.values()
        ]
        columns[field.name] = pa.chunked_array(parts, field.type)
    table = pa.table(columns, CREDIT.with_metadata({"tasks": str(tasks)}))
    with atomic_write(folder / MARK) as target:
        pq.write_table(table, target, compression="zstd", compression_level=1, write_page_checksum=True)


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


def _groups(tasks: Iterable[Task], turns: Callable[[Task], int]) -> Iterator[list[Task]]:
    """The tasks of each row group."""
    members: list[Task] = []
    count = 0
    for task in tasks:
        members.append(task)
        count += turns(task)
        if count >= TURNS_TOGETHER:
            yield members
            members, count = [], 0
    if members:
        yield members


def _shards(groups: Iterator[Sequence[Whole]]) -> Iterator[Iterator[Sequence[Whole]]]:
    """The row groups of each shard; each shard is to be used up before the next one."""
    for first in groups:

        def shard(first: Sequence[Whole] = first) -> Iterator[Sequence[Whole]]:
            yield first
            for _, group in zip(range(GROUPS_TOGETHER - 1), groups, strict=False):
                yield group

        yield shard()


def _write_shard(folder: Path, name: str, step: int, groups: Iterable[Sequence[Whole]]) -> int:
    tasks = []
    with ExitStack() as closing:
        files = {kind: folder / f"{kind}-{name}.parquet" for kind in KINDS}
        parts = {kind: closing.enter_context(atomic_write(files[kind])) for kind in ("episodes", "nodes")}
        with ExitStack() as writing:
            writers = {kind: writing.enter_context(_open(path, kind)) for kind, path in parts.items()}
            for number, members in enumerate(groups):
                tasks.append(_write_group(writers, step, number, members))
        sums = {f"{kind}_checksum": footer_checksum(path) for kind, path in parts.items()}
    with atomic_write(files["tasks"]) as target, _open(target, "tasks") as writer:
        for part in tasks:
            checksums = {name: [value] * len(part) for name, value in sums.items()}
            writer.write_table(_fitted(INDEX, part, pa.table(checksums)))
    return sum(map(len, tasks))


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


def _write_group(writers: Writers, step: int, number: int, members: Sequence[Whole]) -> pa.Table:
    """Write a row group of nodes and of episodes, and return the rows of their tasks."""
    tasks = pa.concat_tables([each.tasks for each in members])
    for kind, key in (("episodes", "episode"), ("nodes", "node")):
        counts = tasks[kind].to_numpy()
        keys = {
            "step": pa.repeat(step, counts.sum()),
            "uid": tasks["uid"].take(pa.array(np.repeat(np.arange(len(tasks)), counts))),
            key: np.concatenate([np.arange(count) for count in counts]),
        }
        rows = pa.concat_tables([getattr(each, kind) for each in members])
        writers[kind].write_table(_fitted(STORED[kind], pa.table(keys), rows), row_group_size=max(len(rows), 1))
    keys = {"step": [step] * len(tasks), "row_group": [number] * len(tasks)}
    return beside(pa.table(keys), tasks)


def _fitted(schema: pa.Schema, *tables: pa.Table) -> pa.Table:
    """One table with the columns of all, of the types of a schema."""
    found = beside(*tables)
    return pa.table([found[name].cast(schema.field(name).type) for name in schema.names], schema)
