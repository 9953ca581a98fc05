"""Stored steps as the page needs them: light columns with credit for the overview, one group's graph on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.errors import FileError, GraphError
from verl_hier.graph import SCHEMA_VERSION, RolloutGraph, read_graphs
from verl_hier.graph.bounded_reading import folder_entries, parquet_metadata, parquet_table, parse_json
from verl_hier.graph.columnar.encode import encode, encode_records, encode_whole, uid_of
from verl_hier.graph.columnar.layout import CREDIT, INDEX, STORED, WHOLE, Columns
from verl_hier.graph.columnar.reading import read_columns, shards
from verl_hier.graph.steps import MARK, is_step
from verl_hier.graph.storage import graph_parts
from verl_hier.graph.success import said_of_older

Floats = NDArray[np.float64]
_TASK = pa.schema([INDEX.field(name) for name in ("uid", "task", "phase", "started", "version")])
_GROUP = pa.schema([INDEX.field(name) for name in ("uid", "row_group")])
_NODES = pa.schema([*(STORED["nodes"].field(name) for name in ("uid", "node")), *WHOLE["nodes"]])
_CREDITED = ("uid", "node", "credit")
_DIFFERENCE = "logprob_difference"
"""A column that stores of earlier versions lack."""
_WORDS = pa.schema([STORED["nodes"].field(name) for name in ("uid", "node", "text", "messages")])


@dataclass(frozen=True)
class Step:
    """The rollouts of one trainer step.

    Attributes:
        number: of the step.
        columns: light columns of its tasks: G tasks, M nodes.
        tasks: for each of the G tasks its identity, as the data set gave it.
        phases: for each of the G tasks what learned in the step: `name`, `levels` and `roles`.
        started: (G,) step whose weights started the rollout.
        credit: (M,) credit of each node, NaN where none was stored.
        difference: (M,) mean |log p(rollout) - log p(training)| of the trained tokens of each node, NaN where that is
            not known.
        source: folder of the step, or the file that holds it.
        version: the oldest schema version of its graphs.
    """

    number: int
    columns: Columns
    tasks: list[dict[str, Any]]
    phases: list[dict[str, Any]]
    started: NDArray[np.int64]
    credit: Floats
    difference: Floats
    source: Path
    version: int

    def uids(self) -> list[str]:
        """The uid of each task."""
        found: list[str] = self.columns.tasks["uid"].to_pylist()
        return found

    def graph(self, uid: str) -> RolloutGraph:
        """The graph of one task, read anew.

        Raises:
            GraphError: when the step does not hold the task.
        """
        whole = is_step(self.source)
        for graph in read_graphs(self.source, [uid]):
            if whole or graph.step == self.number:
                return graph
        raise self._without(uid)

    def turns(self, uid: str) -> slice:
        """The rows of the light columns of nodes, and of `credit`, that belong to a task."""
        return self._rows("nodes", uid)

    def attempts(self, uid: str) -> slice:
        """The rows of the columns of episodes that belong to a task."""
        return self._rows("episodes", uid)

    def _rows(self, kind: str, uid: str) -> slice:
        place = self.uids().index(uid)
        sizes = self.columns.tasks[kind].to_numpy()
        first = int(sizes[:place].sum())
        return slice(first, first + int(sizes[place]))

    def nodes(self, uid: str) -> pa.Table:
        """All columns of the nodes of a task, read anew; row k is node k.

        Raises:
            GraphError: when the step does not hold the task, or not all of its nodes.
            FileError: when a file is damaged.
        """
        if not is_step(self.source):
            return encode_whole([self.graph(uid)]).nodes
        for shard in shards(self.source):
            (index,) = shard.tables(tasks=_GROUP)
            group = pc.index(index["uid"], uid).as_py()
            if group >= 0:
                (table,) = shard.tables([index["row_group"][group].as_py()], nodes=_NODES)
                mine = table.filter(pc.equal(table["uid"], uid))
                rows = self.turns(uid)
                if not np.array_equal(mine["node"].to_numpy(), np.arange(rows.stop - rows.start)):
                    raise GraphError(
                        f"{shard.file('nodes')} does not have the nodes of task {uid!r:.60} in their order."
                    )
                return mine.select(WHOLE["nodes"].names)
        raise self._without(uid)

    def _without(self, uid: str) -> GraphError:
        return GraphError(f"step {self.number} of {self.source} holds no rollout graph of task {uid!r:.60}.")


def find(steps: Iterable[Step], words: str, over: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, str, int]]:
    """(step, uid, node) of the turns that said or were told some words; capitals do not matter.

    Args:
        steps: to search. A file with several of them is read once.
        words: what to look for.
        over: asked between two pieces that are read; once it is true, the search ends.
    """
    files: dict[Path, set[int]] = {}
    for step in steps:
        if not is_step(step.source):
            files.setdefault(step.source, set()).add(step.number)
            continue
        for shard in shards(step.source):
            for number in range(parquet_metadata(shard.file("tasks")).num_row_groups):
                if over():
                    return
                (table,) = shard.tables([number], nodes=_WORDS)
                yield from ((step.number, uid, node) for uid, node in _matches(table, words))
    for file, numbers in files.items():
        for graph in read_graphs(file):
            if over():
                return
            if graph.step in numbers:
                yield from ((graph.step, uid_of(graph), node.id) for node in graph.nodes if _says(node, words))


def read_steps(source: Path) -> tuple[list[Step], list[str]]:
    """The steps that can be read, and a sentence for each that cannot.

    Args:
        source: a store, a step, a graph file, or a folder of them. A folder without rollouts has no steps.
    """
    reading = Reading(source)
    while reading.unread:
        reading.read_one()
    return reading.found()


class Reading:
    """The steps of a source, read one part after the other, the last one first."""

    def __init__(self, source: Path | None = None, before: Reading | None = None) -> None:
        """
        Args:
            source: see `read_steps`; None for nothing.
            before: an earlier reading; what has not changed since is not read again.
        """
        self._notes: list[str] = []
        self._keys: list[tuple[Path, str]] = []
        self._read: dict[tuple[Path, str], tuple[list[Step], list[str]]] = {}
        if source is None:
            return
        try:
            self._keys = [(part, stamp(part)) for part in graph_parts(source)]
        except (GraphError, FileError) as error:
            self._notes.append(str(error))
        else:
            self._notes += [
                f"{entry.name} is left out: it was not written to its end. A run may be writing it now."
                for entry in (folder_entries(source) if source.is_dir() and not is_step(source) else ())
                if is_step(entry) and not (entry / MARK).exists()
            ]
        if before is not None:
            self._read = {key: before._read[key] for key in self._keys if key in before._read}

    @property
    def unread(self) -> int:
        """How many parts are left to read."""
        return len(self._keys) - len(self._read)

    def read_one(self, number: int | None = None) -> None:
        """Read the last part that was not read, or the one that is named for a step where it was not."""
        left = [key for key in self._keys if key not in self._read]
        part, mark = next((key for key in left if number is not None and _number(key[0]) == number), left[-1])
        try:
            self._read[part, mark] = ([_stored_step(part)] if is_step(part) else list(_steps_of_file(part))), []
        except (GraphError, FileError) as error:
            self._read[part, mark] = [], [str(error)]

    def found(self) -> tuple[list[Step], list[str]]:
        """The steps that were read so far, and the sentences."""
        found: dict[int, Step] = {}
        notes = [*self._notes]
        for part, mark in self._keys:
            steps, said = self._read.get((part, mark), ([], []))
            notes += said
            for step in steps:
                if step.number in found:
                    notes.append(f"{part.name}: step {step.number} is there twice; the first one is shown.")
                found.setdefault(step.number, step)
        ordered = [found[number] for number in sorted(found)]
        return ordered, [*notes, *said_of_older({step.number: step.version for step in ordered})]


def _number(part: Path) -> int | None:
    return int(part.name.rpartition("_")[2]) if is_step(part) else None


def stamp(source: Path) -> str:
    """A text that changes when a step is added or written again."""
    if not source.is_dir():
        return str(source.stat().st_mtime_ns) if source.exists() else ""
    marks = [entry / MARK if is_step(entry) else entry for entry in [source, *sorted(source.iterdir())]]
    return "-".join(str(mark.stat().st_mtime_ns) for mark in marks if mark.is_file())


def _stored_step(folder: Path) -> Step:
    number, columns = read_columns(folder)
    parts = [shard.tables(tasks=_TASK)[0] for shard in shards(folder)]
    tasks = pa.concat_tables([_TASK.empty_table(), *parts])
    stored = {*parquet_metadata(folder / MARK).schema.names}
    schema = pa.schema([CREDIT.field(name) for name in (*_CREDITED, _DIFFERENCE) if name in {*_CREDITED} | stored])
    table = parquet_table(folder / MARK, schema)
    sizes = columns.tasks["nodes"].to_numpy()
    first = np.cumsum(sizes) - sizes
    known = pc.fill_null(pc.index_in(table["uid"], value_set=columns.tasks["uid"].combine_chunks()), -1)
    place, node = known.to_numpy().astype(np.int64), table["node"].to_numpy()
    if (place < 0).any() or (node < 0).any() or (node >= sizes[place]).any():
        raise GraphError(f"{folder / MARK} has the credit of a turn that the step does not hold.")
    credit, difference = np.full((2, len(columns.nodes)), np.nan)
    credit[first[place] + node] = table["credit"].to_numpy()
    if _DIFFERENCE in stored:
        difference[first[place] + node] = table[_DIFFERENCE].to_numpy()
    return Step(number, columns, *_said(tasks), credit, difference, folder, _oldest(tasks))


def _steps_of_file(file: Path) -> Iterator[Step]:
    for number, members in groupby(read_graphs(file), key=lambda graph: graph.step):
        yield _step_of(number, list(members), file)


def _step_of(number: int, graphs: Sequence[RolloutGraph], file: Path) -> Step:
    credit = [graph.credit or [np.nan] * len(graph.nodes) for graph in graphs]
    tasks = encode_records(graphs)
    flat = np.concatenate([np.asarray(each, np.float64) for each in credit])
    return Step(number, encode(graphs), *_said(tasks), flat, np.full(len(flat), np.nan), file, _oldest(tasks))


def _said(tasks: pa.Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]], NDArray[np.int64]]:
    task, phase = ([_mapping(text) for text in tasks[name].to_pylist()] for name in ("task", "phase"))
    return task, phase, tasks["started"].to_numpy()


def _oldest(tasks: pa.Table) -> int:
    return min(tasks["version"].to_pylist(), default=SCHEMA_VERSION)


def _mapping(text: str | None) -> dict[str, Any]:
    found = {} if text is None else parse_json(text, "a column of JSON")
    return found if isinstance(found, dict) else {}


def _matches(table: pa.Table, words: str) -> list[tuple[str, int]]:
    def holds(texts: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        return np.asarray(pc.fill_null(pc.match_substring(texts, words, ignore_case=True), False), bool)

    said = holds(table["text"])
    lists = table["messages"].combine_chunks()
    owner = np.asarray(pc.list_parent_indices(lists))
    said[owner[holds(lists.flatten().field("content"))]] = True
    kept = table.select(["uid", "node"]).filter(pa.array(said))
    return list(zip(kept["uid"].to_pylist(), kept["node"].to_pylist(), strict=True))


def _says(node: Any, words: str) -> bool:
    wanted = words.lower()
    return wanted in node.text.lower() or any(wanted in message.content.lower() for message in node.messages)
