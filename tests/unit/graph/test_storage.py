"""Graphs on disk: what is written is read back, and what is wrong is one sentence that names the file."""

import errno
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import many_turns, random_graph
from verl_hier.errors import GraphError
from verl_hier.graph import SCHEMA_VERSION, RolloutGraph, read_graphs, storage, write_graphs
from verl_hier.graph.atomic_write import atomic_write, write_records
from verl_hier.graph.bounded_reading import parquet_rows, parse_json
from verl_hier.graph.records import FIELDS_SINCE
from verl_hier.graph.storage import GROUPS_TOGETHER

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def refuses(call, *words):
    with pytest.raises(GraphError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    assert all(str(word) in sentence for word in words), sentence


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path, suffix):
    graphs = rollout_graphs.golden()
    path = tmp_path / "deep" / f"step{suffix}"
    assert write_graphs(path, iter(graphs)) == len(graphs)
    assert list(read_graphs(path)) == graphs
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_parquet_has_columns_to_select_by(tmp_path):
    graphs = rollout_graphs.golden()
    write_graphs(tmp_path / "step.parquet", graphs)
    table = pq.read_table(tmp_path / "step.parquet")
    assert table.column_names == ["version", "step", "uid", "graph"]
    assert table["step"].to_pylist() == [graph.step for graph in graphs]
    assert table["uid"].to_pylist() == ["u"] * 3


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_text_of_a_graph_is_that_of_its_dictionary(tmp_path, suffix):
    graphs = [*rollout_graphs.golden(), *(random_graph(seed) for seed in range(20))]
    write_graphs(tmp_path / f"step{suffix}", graphs)
    lines = {
        ".parquet": lambda path: pq.read_table(path)["graph"].to_pylist(),
        ".jsonl": lambda path: path.read_text().splitlines(),
        ".jsonl.gz": lambda path: gzip.decompress(path.read_bytes()).decode().splitlines(),
    }
    found = lines[suffix](tmp_path / f"step{suffix}")
    assert found == [json.dumps(graph.to_dict(), separators=(",", ":")) for graph in graphs]


def many_groups():
    return [many_turns(2, 2 + number % 3, f"task {number}") for number in range(3 * GROUPS_TOGETHER + 1)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("wanted", [[0], [7], [8], [24], [3, 4, 23], range(25)])
def test_single_groups_are_read_by_their_uid(tmp_path, suffix, wanted):
    graphs = many_groups()
    write_graphs(tmp_path / f"step{suffix}", graphs)
    uids = {f"task {number}" for number in wanted}
    assert list(read_graphs(tmp_path, uids)) == [graphs[number] for number in wanted]


def test_one_group_is_read_without_the_others(tmp_path, monkeypatch):
    graphs = many_groups()
    write_graphs(tmp_path / "step.parquet", graphs)
    file = pq.ParquetFile(tmp_path / "step.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [GROUPS_TOGETHER] * 3 + [1]
    parsed = []
    monkeypatch.setattr(storage, "parse_json", lambda *given: parsed.append(given[1]) or parse_json(*given))
    assert list(read_graphs(tmp_path / "step.parquet", ["task 9"])) == [graphs[9]]
    assert parsed == [f"{tmp_path / 'step.parquet'}, record 10"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_task_that_is_not_there_is_named(tmp_path, suffix):
    write_graphs(tmp_path / f"step{suffix}", [rollout_graphs.flat()])
    refuses(lambda: list(read_graphs(tmp_path, ["u", "nobody"])), "no rollout graph of task 'nobody'")


def test_files_without_uids_are_searched_as_a_whole(tmp_path):
    """Other programs may write the texts alone."""
    graphs = many_groups()
    texts = [json.dumps(graph.to_dict()) for graph in graphs]
    pq.write_table(pa.table({"graph": texts}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"graph": texts, "uid": [None] * len(texts)}), tmp_path / "b.parquet")
    for name in ("a.parquet", "b.parquet"):
        assert list(read_graphs(tmp_path / name, ["task 9"])) == [graphs[9]]


def test_a_uid_that_names_another_graph_is_not_believed(tmp_path):
    texts = [json.dumps(rollout_graphs.flat().to_dict())]
    pq.write_table(pa.table({"graph": texts, "uid": ["v"]}), tmp_path / "a.parquet")
    refuses(lambda: list(read_graphs(tmp_path, ["v"])), "no rollout graph of task 'v'")


def test_a_directory_is_read_in_name_order(tmp_path):
    graphs = rollout_graphs.golden()
    for graph, name in zip(graphs, ("b.jsonl", "a.parquet", "c.jsonl.gz"), strict=True):
        write_graphs(tmp_path / name, [graph])
    (tmp_path / "notes.txt").write_text("not a graph")
    assert list(read_graphs(tmp_path)) == [graphs[1], graphs[0], graphs[2]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_newer_version_is_refused(tmp_path, suffix):
    graph = rollout_graphs.flat()
    graph.version = SCHEMA_VERSION + 1
    write_graphs(tmp_path / f"new{suffix}", [graph])
    refuses(
        lambda: list(read_graphs(tmp_path / f"new{suffix}")),
        f"schema version {SCHEMA_VERSION + 1}",
        f"reads up to {SCHEMA_VERSION}",
        "new",
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_file_is_refused(tmp_path, suffix):
    write_graphs(tmp_path / f"empty{suffix}", [])
    refuses(lambda: list(read_graphs(tmp_path / f"empty{suffix}")), f"empty{suffix} is empty")


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", ["record 1", "not JSON"]),
        ("[1]", ["record 1", "not a rollout graph"]),
        ('{"version": "1"}', ["no integer `version`"]),
        ('{"version": 1, "nodes": []}', ["does not fit schema version 1", "it lacks `task`"]),
        ('{"version": 1, "nodes": [{"id": 0}], "episodes": []}', ["does not fit schema version 1", "parent"]),
        ('{"version": 1, "nodes": [], "episodes": [], "task": {"uid": "u"}, "colour": 1}', ["colour"]),
        ('{"version": 2, "nodes": [{"messages": [{"role": "user"}]}], "episodes": []}', ["does not fit"]),
        ('{"version": 1, "nodes": 3, "episodes": []}', ["does not fit"]),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, text, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(text + "\n")
    refuses(lambda: list(read_graphs(path)), path, *words)


def test_the_bad_record_is_named(tmp_path):
    path = tmp_path / "graphs.jsonl"
    write_graphs(path, [rollout_graphs.flat()])
    path.write_text(path.read_text() + "\n" + '{"version": 1}\n')
    refuses(lambda: list(read_graphs(path)), "record 2")


def test_damaged_files_are_refused(tmp_path):
    for name, content in (
        ("plain.jsonl.gz", b"not gzip"),
        ("cut.jsonl.gz", gzip.compress(b"x" * 1000)[:-12]),
        ("bytes.jsonl", b"\xff\xfe\x00"),
        ("text.parquet", b"not parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        refuses(lambda name=name: list(read_graphs(tmp_path / name)), name)


def test_nothing_to_read_is_refused(tmp_path):
    refuses(lambda: list(read_graphs(tmp_path / "none.jsonl")), "there is no file")
    refuses(lambda: list(read_graphs(tmp_path)), "holds no rollout graphs")


def test_an_unknown_suffix_is_refused(tmp_path):
    refuses(
        lambda: write_graphs(tmp_path / "new" / "graphs.csv", [rollout_graphs.flat()]), "no known suffix", ".parquet"
    )
    assert not (tmp_path / "new").exists()


def test_an_unwritable_path_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    refuses(
        lambda: write_graphs(tmp_path / "file" / "graphs.jsonl", [rollout_graphs.flat()]),
        "cannot write",
        "graphs.jsonl",
    )
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        refuses(
            lambda: write_graphs(tmp_path / "locked" / "graphs.jsonl", [rollout_graphs.flat()]), "Permission denied"
        )


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "graphs.jsonl"
    write_graphs(path, [rollout_graphs.flat()])
    before = path.read_text()
    graph = rollout_graphs.flat()
    graph.nodes[0].extra["thing"] = object()
    refuses(lambda: write_graphs(path, [graph]), "cannot write", "object", path)
    assert path.read_text() == before


def test_the_golden_file_is_read_and_written_back_byte_by_byte(tmp_path):
    graphs = list(read_graphs(rollout_graphs.GOLDEN))
    text = rollout_graphs.GOLDEN.read_text(encoding="utf-8")
    assert [graph.to_dict() for graph in graphs] == [json.loads(line) for line in text.splitlines()]
    write_graphs(tmp_path / "again.jsonl", graphs)
    assert (tmp_path / "again.jsonl").read_text(encoding="utf-8") == text
    for graph in graphs:
        graph.check()


def test_the_golden_file_is_what_the_same_seeds_give_today():
    """A difference here is a change of seeds, of tokens or of the schema; the last needs another version."""
    assert list(read_graphs(rollout_graphs.GOLDEN)) == rollout_graphs.golden()


def test_files_of_older_versions_are_read_as_graphs_without_what_was_added_since(tmp_path):
    graphs = rollout_graphs.golden_v2()
    assert list(read_graphs(rollout_graphs.OLDER[2])) == graphs
    for node in (node for graph in graphs for node in graph.nodes):
        assert node.messages
        node.messages = []
    assert list(read_graphs(rollout_graphs.OLDER[1])) == graphs
    assert list(read_graphs(rollout_graphs.OLDER[3])) == rollout_graphs.golden_v3()
    for path in rollout_graphs.OLDER.values():
        write_graphs(tmp_path / "again.jsonl", read_graphs(path))
        assert {graph.version for graph in read_graphs(tmp_path / "again.jsonl")} == {FIELDS_SINCE}


def test_wall_time_and_reward_information_of_older_versions_move_to_their_fields():
    data = json.loads(rollout_graphs.OLDER[2].read_text(encoding="utf-8").splitlines()[0])
    data["counts"]["rollout_ms"] = 1500
    data["episodes"][0]["decision"]["reward_extra_info"] = {"acc": 0.5}
    graph = RolloutGraph.from_dict(data)
    assert graph.seconds == {"rollout": 1.5} and "rollout_ms" not in graph.counts
    assert graph.episodes[0].reward_info == {"acc": 0.5} and graph.episodes[0].decision == {}


def test_records_are_columns_or_lines_by_their_suffix(tmp_path):
    records = [{"text": "é", "number": 1}, {"text": "\n", "number": 2}]
    assert write_records(tmp_path / "new" / "deep" / "records.parquet", iter(records)) == 2
    assert list(parquet_rows(tmp_path / "new" / "deep" / "records.parquet")) == records
    assert write_records(tmp_path / "records.jsonl", iter(records)) == 2
    lines = (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines == ['{"text": "é", "number": 1}', r'{"text": "\n", "number": 2}']


@pytest.mark.parametrize("named", [None, "beside"])
def test_an_error_while_a_file_is_written_names_the_file_that_was_wanted(tmp_path, named):
    target = tmp_path / "graphs.jsonl"
    with pytest.raises(OSError) as caught, atomic_write(target) as beside:
        raise OSError(errno.ENOSPC, "full", str(beside) if named else None)
    assert caught.value.filename == str(target) and caught.value.errno == errno.ENOSPC


def test_an_error_of_something_else_stays_what_it_is(tmp_path):
    for error in (OSError("no number"), OSError(errno.ENOENT, "not there", "another file")):
        with pytest.raises(OSError) as caught, atomic_write(tmp_path / "graphs.jsonl"):
            raise error
        assert caught.value is error
    assert not list(tmp_path.iterdir())
