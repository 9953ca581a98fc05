"""The light part of rollouts: what a trainer has to know of them, without their tokens and words.

It travels once a task as bytes: four Arrow streams, of the task, its episodes, its nodes and its rows for verl.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verl_hier.graph.columnar.encode import beside, encode, encode_records, lists_of
from verl_hier.graph.columnar.layout import TOKEN_LISTS, Columns
from verl_hier.graph.columnar.table import complete_episodes
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.rows import Row
from verl_hier.graph.success import WITHOUT_WORD, decided_column

_ROWS = pa.schema({"episode": pa.int32(), "nodes": pa.list_(pa.int32())})


@dataclass(frozen=True)
class Light:
    """The light part of some tasks.

    Attributes:
        columns: those of the tasks have `TASK_RECORDS` and the number of `rows` too; those of the episodes have
            `answers`, which is equal for rewarded episodes of equal words and null for episodes without a reward.
        rows: those for verl, grouped by task and episode: `episode`, and `nodes` in token order.
    """

    columns: Columns
    rows: pa.Table

    @property
    def uids(self) -> list[str]:
        """The uid of each task."""
        found: list[str] = self.columns.tasks["uid"].to_pylist()
        return found

    @cached_property
    def counts(self) -> list[dict[str, int]]:
        """`RolloutGraph.counts` of each task."""
        return self.records("counts")

    def records(self, name: str) -> list[dict[str, Any]]:
        """A field of each task that is a mapping, one of `TASK_JSON`."""
        return [{} if text is None else json.loads(text) for text in self.columns.tasks[name].to_pylist()]

    def sizes(self, kind: str) -> NDArray[np.int64]:
        """(G,) how many `nodes`, `episodes` or `rows` each task has."""
        found: NDArray[np.int64] = self.columns.tasks[kind].to_numpy()
        return found


def light_of(
    graphs: Sequence[RolloutGraph], rows: Sequence[Sequence[Row]] | None = None, tokens: Collection[str] = ()
) -> Light:
    """The light part of some graphs.

    Args:
        graphs: whose `check` passes.
        rows: the rows that were cut from each graph, grouped by episode; none when omitted.
        tokens: heavy columns that are taken along, of `TOKEN_LISTS`.

    Raises:
        TypeError: for counts or other records of a task that JSON cannot represent.
        OverflowError: for a number that does not fit its column.
    """
    cut = [[] for _ in graphs] if rows is None else rows
    found = encode(graphs)
    tasks = beside(found.tasks, encode_records(graphs), pa.table({"rows": pa.array(list(map(len, cut)), pa.int64())}))
    answers = [answer for graph in graphs for answer in _answers(graph)]
    episodes = beside(found.episodes, pa.table({"answers": pa.array(answers, pa.binary())}))
    nodes = beside(found.nodes, pa.table({name: found.heavy(name) for name in tokens}))
    flat = [row for each in cut for row in each]
    chains = pa.table([[row.episode for row in flat], lists_of([row.nodes for row in flat], np.int32)], schema=_ROWS)
    return _light(tasks, episodes, nodes, chains)


def pack(light: Light) -> bytes:
    """A light part as bytes, for `unpack`."""
    sink = pa.BufferOutputStream()
    columns = light.columns
    for table in (columns.tasks, columns.episodes, columns.nodes, light.rows):
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpack(parts: Sequence[bytes]) -> Light:
    """The light part of several tasks, one after the other, from those of `pack`.

    Raises:
        pyarrow.ArrowInvalid: for other bytes.
    """
    if not parts:
        return light_of([])
    kinds: list[list[pa.Table]] = [[], [], [], []]
    for part in parts:
        source = pa.BufferReader(part)
        for kind in kinds:
            with pa.ipc.open_stream(source) as stream:
                kind.append(stream.read_all())
    return _light(*(pa.concat_tables(tables).combine_chunks() for tables in kinds))


def _light(tasks: pa.Table, episodes: pa.Table, nodes: pa.Table, rows: pa.Table) -> Light:
    tokens = tuple(name for name in TOKEN_LISTS if name in nodes.column_names)
    light = Light(Columns(tasks, episodes, nodes, nodes.column, tokens), rows)
    marked = [WITHOUT_WORD in counts for counts in light.counts]
    if not any(marked):
        return light
    is_open = np.repeat(np.asarray(marked, bool), light.sizes("episodes"))
    success = decided_column(episodes["success"], complete_episodes(light.columns), is_open)
    place = episodes.column_names.index("success")
    return replace(light, columns=replace(light.columns, episodes=episodes.set_column(place, "success", success)))


def _answers(graph: RolloutGraph) -> list[bytes | None]:
    """A digest of what each rewarded episode said, turn by turn; None for the others."""
    said: list[bytes] = []
    for node in graph.nodes:  # a parent comes before its children
        before = said[node.parent] if node.parent >= 0 else b""
        said.append(blake2b(before + node.text.strip().encode(errors="surrogatepass"), digest_size=16).digest())
    return [said[record.leaf] if record.ret > 0 and record.leaf >= 0 else None for record in graph.episodes]
