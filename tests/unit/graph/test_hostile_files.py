"""Graphs of a stranger: parts that do not fit together, and pages in which a bit was changed, are refused."""

from __future__ import annotations

import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures import hostile_files, rollout_graphs
from verl_hier.errors import FileError, GraphError
from verl_hier.graph import read_graphs, write_graphs
from verl_hier.graph.bounded_reading import parquet_rows

MUST_REFUSE = sorted(name for name, _ in hostile_files.links() if name not in ("request",))


@pytest.mark.parametrize("name", MUST_REFUSE)
def test_a_graph_whose_parts_do_not_fit_is_refused(tmp_path, name):
    data = dict(hostile_files.links())[name]
    file = tmp_path / "graph.jsonl"
    file.write_text(hostile_files.dumped(data) + "\n")
    with pytest.raises(GraphError) as caught:
        list(read_graphs(file))
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(file))


def test_no_bit_of_a_page_can_change_unseen(tmp_path):
    whole = tmp_path / "whole.parquet"
    graphs = rollout_graphs.golden()
    write_graphs(whole, graphs)
    rng = random.Random(2)
    for number in range(200):
        file = hostile_files.flipped(whole, tmp_path / f"{number}.parquet", rng)
        try:
            assert list(read_graphs(file)) == graphs, f"flip {number} was read as other graphs"
        except GraphError:
            pass


def test_damage_of_a_footer_is_refused_and_does_not_end_the_process(tmp_path):
    """A footer has no checksum; pyarrow aborts when it is asked for the metadata of a column whose sizes are wrong."""
    whole = tmp_path / "whole.parquet"
    graphs = rollout_graphs.golden()
    write_graphs(whole, graphs)
    content = whole.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    rng = random.Random(3)
    for _ in range(400):
        changed = bytearray(content)
        changed[rng.randrange(footer, len(content))] ^= 1 << rng.randrange(8)
        file = tmp_path / "changed.parquet"
        file.write_bytes(changed)
        try:
            assert list(read_graphs(file)) == graphs
        except GraphError:
            pass


def test_damage_of_a_footer_of_lists_is_refused_and_does_not_end_the_process(tmp_path):
    """A column of texts whose metadata calls it numbers: pyarrow aborts the process that asks how many it has."""
    rows = [{"input_ids": [1, 2], "weights": [0.0, 1.0], "role": "agent"}] * 3
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    assert list(parquet_rows(file)) == rows
    content = file.read_bytes()
    texts, numbers = bytes([0x15, 2 * 6]), bytes([0x15, 2 * 4])  # a field of Thrift's: Parquet's BYTE_ARRAY, and FLOAT
    refused = 0
    for found in re.finditer(re.escape(texts), content):
        file.write_bytes(content[: found.start()] + numbers + content[found.end() :])
        try:
            assert list(parquet_rows(file, ["input_ids", "weights"])) == [
                {name: row[name] for name in ("input_ids", "weights")} for row in rows
            ]
        except FileError:
            refused += 1
    assert refused
