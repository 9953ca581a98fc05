"""Files of a stranger through the commands that read graphs: a sentence, no traceback, no hang, nothing false read."""

from __future__ import annotations

import random

import pytest

from tests.fixtures import hostile_files, rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import read_graphs, write_graphs

CHANGED = 60
MUST_REFUSE = sorted(name for name, _ in hostile_files.links() if name not in ("request",))


def test_graphs(tmp_path):
    problems = []
    for file in hostile_files.graph_files(tmp_path, random.Random(1), CHANGED):
        found = hostile_files.problem(["credit", file, "--compare", "grpo,gigpo"])
        found = found or (hostile_files.wrongly_accepted(file) if file.is_file() else None)
        if found:
            problems.append(f"{file.name}: {found}")
    assert not problems, "\n".join(problems)


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
        file = hostile_files._flipped(whole, tmp_path / f"{number}.parquet", rng)
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
