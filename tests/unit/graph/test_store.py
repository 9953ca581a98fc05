"""Stored steps: what is written is read back, by graph and by column, and what is wrong is one sentence."""

import copy
import os
import random
import shutil
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.exceptions import RayActorError

from tests.fixtures import hostile_files, rollout_graphs
from tests.fixtures.light import store_step
from tests.fixtures.random_graphs import many_turns, random_graph
from tests.unit.graph.test_columnar import files_can_hold
from tests.unit.training.test_columns import table_difference
from verl_hier.errors import GraphError, HierError
from verl_hier.graph import SCHEMA_VERSION, RolloutGraph, number_turns, read_graphs, write_step
from verl_hier.graph.columnar import reading, writing
from verl_hier.graph.columnar.held import HeldRollouts, Written
from verl_hier.graph.columnar.reading import read_columns
from verl_hier.graph.columnar.table import table_of
from verl_hier.graph.steps import MARK, keep_below, write_card
from verl_hier.training.store import StepInStore, drawn


def recorded():
    """Recorded rollouts of different tasks."""
    graphs = [*rollout_graphs.golden(), rollout_graphs.forked(), rollout_graphs.windowed()]
    for number, graph in enumerate(graphs):
        graph.task["uid"] = f"task {number}"
    return graphs


def step(store, number=12):
    return store / f"step_{number:06d}"


def refuses(call, *words):
    with pytest.raises(HierError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    assert all(str(word) in sentence for word in words), sentence


@pytest.fixture
def small_groups(monkeypatch):
    """A few turns are a row group, and a few of those a shard."""
    monkeypatch.setattr(writing, "TURNS_TOGETHER", 12)
    monkeypatch.setattr(writing, "GROUPS_TOGETHER", 3)


def test_a_step_comes_back(tmp_path):
    graphs = recorded()
    assert write_step(tmp_path, 12, iter(graphs)) == len(graphs)
    assert list(read_graphs(tmp_path)) == list(read_graphs(step(tmp_path))) == graphs
    names = {"credit.parquet", *(f"{kind}-trainer-0.parquet" for kind in ("nodes", "episodes", "tasks"))}
    assert {file.name for file in step(tmp_path).iterdir()} == names


def test_random_graphs_come_back_from_many_shards(tmp_path, small_groups):
    graphs = [graph for graph in (random_graph(seed, f"u{seed}") for seed in range(150)) if files_can_hold(graph)]
    for graph in graphs[::3]:
        graph.credit = [0.5 * node.id for node in graph.nodes]
    write_step(tmp_path, 3, graphs)
    assert list(read_graphs(tmp_path)) == graphs
    assert len(list(step(tmp_path, 3).glob("tasks-*"))) > 2
    for number in (0, 7, len(graphs) - 1):
        assert list(read_graphs(tmp_path, [graphs[number].task["uid"]])) == [graphs[number]]


def test_the_turn_table_of_a_stored_step_is_that_of_its_graphs(tmp_path, small_groups):
    for number in range(12):
        made = (random_graph(50 * number + seed, f"u{seed}") for seed in range(12))
        graphs = [graph for graph in made if files_can_hold(graph)]
        write_step(tmp_path, number, graphs)
        found, columns = read_columns(step(tmp_path, number))
        table, turn_of = table_of(columns)
        expected, expected_turns = number_turns(graphs)
        assert found == number and table_difference(table, expected) is None
        assert all(map(np.array_equal, turn_of, expected_turns))


def test_keys_and_credit_are_columns(tmp_path):
    graphs = recorded()
    write_step(tmp_path, 12, graphs)
    nodes, credit = (pq.read_table(step(tmp_path) / name) for name in ("nodes-trainer-0.parquet", "credit.parquet"))
    keys = [(12, graph.task["uid"], node.id) for graph in graphs for node in graph.nodes]
    assert list(zip(*(nodes[name].to_pylist() for name in ("step", "uid", "node")), strict=True)) == keys
    assert credit.to_pylist() == [
        {"step": 12, "uid": "task 0", "node": node, "credit": value}
        | dict.fromkeys(("weight", "group_size", "logprob_difference"))
        for node, value in enumerate(graphs[0].credit)
    ]


def test_one_group_of_many_is_read_without_the_others(tmp_path, monkeypatch):
    graphs = [many_turns(2, 20, f"task {number}") for number in range(400)]
    write_step(tmp_path, 1, graphs)
    read, table = [], reading.parquet_table

    def watched(path, schema, groups=None):
        found = table(path, schema, groups)
        read.append((path.name.partition("-")[0], len(found)))
        return found

    monkeypatch.setattr(reading, "parquet_table", watched)
    assert list(read_graphs(tmp_path, ["task 399"])) == [graphs[399]]
    assert max(rows for kind, rows in read if kind == "nodes") <= writing.TURNS_TOGETHER + len(graphs[0].nodes)


def test_a_step_is_replaced_as_a_whole(tmp_path, small_groups):
    write_step(tmp_path, 12, [many_turns(2, 20, f"task {number}") for number in range(9)])
    write_step(tmp_path, 12, recorded()[:1])
    assert list(read_graphs(tmp_path)) == recorded()[:1]


def test_a_step_that_was_not_written_to_its_end_is_left_out_and_said(tmp_path, caplog):
    for number in (1, 2):
        write_step(tmp_path, number, recorded())
    (step(tmp_path, 2) / "credit.parquet").unlink()
    assert list(read_graphs(tmp_path)) == recorded()
    assert "step_000002 is left out" in caplog.text
    refuses(lambda: list(read_graphs(step(tmp_path, 2))), "step_000002 was not written to its end")
    refuses(lambda: read_columns(step(tmp_path, 2)), "step_000002 was not written to its end")


def test_a_shard_that_is_missing_is_counted(tmp_path, small_groups):
    write_step(tmp_path, 12, [many_turns(2, 20, f"task {number}") for number in range(9)])
    for file in step(tmp_path).glob("*-1.parquet"):
        file.unlink()
    refuses(lambda: list(read_graphs(tmp_path)), "has 6 tasks, and 9 were written")
    refuses(lambda: read_columns(step(tmp_path)), "has 6 tasks, and 9 were written")


def test_a_file_of_another_step_is_noticed(tmp_path):
    write_step(tmp_path, 1, recorded())
    write_step(tmp_path, 2, [rollout_graphs.flat()])
    shutil.copy(step(tmp_path, 2) / "nodes-trainer-0.parquet", step(tmp_path, 1))
    refuses(lambda: list(read_graphs(step(tmp_path, 1))), "not the one that its index was written for")


@pytest.mark.parametrize("kind", ["nodes", "episodes"])
def test_a_file_that_is_missing_is_named(tmp_path, kind):
    write_step(tmp_path, 12, recorded())
    (step(tmp_path) / f"{kind}-trainer-0.parquet").unlink()
    refuses(lambda: list(read_graphs(tmp_path)), f"{kind}-trainer-0.parquet", "No such file")


def test_what_cannot_be_written_is_refused(tmp_path):
    refuses(lambda: write_step(tmp_path, 1, [rollout_graphs.flat(), rollout_graphs.flat()]), "two graphs of task 'u'")
    graph = rollout_graphs.flat()
    graph.nodes[0].extra["thing"] = object()
    refuses(lambda: write_step(tmp_path, 1, [graph]), "step_000001", "'thing'", "object")
    graph = rollout_graphs.flat()
    graph.nodes[0].action[0] = 2**40
    refuses(lambda: write_step(tmp_path, 1, [graph]), "step_000001")
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("credit.parquet"))
    (tmp_path / "file").write_text("in the way")
    refuses(lambda: write_step(tmp_path / "file", 1, [rollout_graphs.flat()]), "cannot write", "step_000001")


def test_a_newer_version_is_refused(tmp_path):
    graphs = recorded()
    graphs[0].version = SCHEMA_VERSION + 1
    write_step(tmp_path, 1, graphs)
    refuses(lambda: list(read_graphs(tmp_path)), f"schema version {SCHEMA_VERSION + 1}", "upgrade")
    refuses(lambda: read_columns(step(tmp_path, 1)), f"schema version {SCHEMA_VERSION + 1}", "upgrade")


def names(store):
    return sorted(entry.name for entry in store.iterdir() if entry.is_dir())


def test_the_oldest_steps_make_room_and_that_is_said(tmp_path, caplog):
    for number in (1, 2, 10):
        assert not store_step(tmp_path, number, recorded())["hier/store/failed"]
    (tmp_path / "validation").mkdir()
    size = sum(file.stat().st_size for file in step(tmp_path, 1).iterdir())
    store_step(tmp_path, 11, recorded(), max_gib=2.5 * size / 2**30)
    assert names(tmp_path) == ["step_000010", "step_000011", "validation"]
    assert "step_000001, step_000002 removed" in caplog.text and "hier.store.max_gib" in caplog.text
    store_step(tmp_path, 12, recorded(), max_gib=1e-9)
    assert names(tmp_path) == ["step_000012", "validation"], "the newest step stays"


@pytest.mark.parametrize(("most", "removed"), [(35, 0), (30, 0), (29, 1), (20, 1), (19, 2), (0, 2)])
def test_the_oldest_steps_go_until_the_others_are_small_enough(tmp_path, most, removed):
    for number in (9, 10, 11):
        folder = step(tmp_path, number)
        folder.mkdir()
        for name, size in ((MARK, 4), ("nodes-a-0.parquet", 6)):
            (folder / name).write_bytes(b"x" * size)
    (tmp_path / "step_other").mkdir()
    oldest = ["step_000009", "step_000010"][:removed]
    assert keep_below(tmp_path, most) == oldest
    assert names(tmp_path) == [*["step_000009", "step_000010", "step_000011"][removed:], "step_other"]


def test_a_card_is_written_once(tmp_path):
    write_card(tmp_path)
    assert "config_name: nodes" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("mine")
    write_card(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_share_of_the_tasks_is_stored_the_same_in_every_run(tmp_path):
    def kept(store, number):
        graphs = [many_turns(1, 2, f"{store} {index}") for index in range(200)]
        for index, graph in enumerate(graphs):
            graph.task["index"] = index
        chosen = [graph for graph in graphs if drawn(graph.task["index"], number) < 0.25]
        store_step(tmp_path / store, number, graphs, chosen=chosen.__contains__, workers=2)
        return sorted(graph.task["index"] for graph in read_graphs(step(tmp_path / store, number)))

    first = kept("a", 1)
    assert 25 < len(first) < 75 and first == kept("b", 1) != kept("a", 2)
    store_step(tmp_path / "none", 1, recorded(), chosen=lambda graph: False)
    assert list(read_graphs(tmp_path / "none")) == []


def by_uid(graphs):
    return sorted(graphs, key=lambda graph: graph.task["uid"])


def test_workers_write_what_they_hold(tmp_path, small_groups):
    graphs = [graph for graph in (random_graph(seed, f"u{seed}") for seed in range(60)) if files_can_hold(graph)]
    for graph in graphs[::2]:
        graph.credit = [0.25 * node.id for node in graph.nodes]
    (step(tmp_path, 3)).mkdir()
    (step(tmp_path, 3) / "nodes-worker9-0.parquet").write_text("of a worker that wrote the step before")
    assert store_step(tmp_path, 3, graphs, workers=3) == {"hier/store/failed": 0.0, "hier/store/missing": 0.0}
    assert by_uid(read_graphs(tmp_path)) == by_uid(graphs)
    assert {file.name.split("-")[1] for file in step(tmp_path, 3).glob("tasks-*")} == {"worker0", "worker1", "worker2"}


def test_the_credit_of_a_step_comes_after_all_of_its_shards(tmp_path):
    """A worker that takes long is waited for, and meanwhile nobody reads half of a step."""
    graphs, (quick, slow) = recorded(), (Future(), Future())
    held = HeldRollouts()
    for graph in graphs:
        held.keep(graph)
    uids = dict.fromkeys((graph.task["uid"] for graph in graphs), True)
    writing = StepInStore.begin(str(tmp_path), 1, uids, [lambda *_: quick, lambda *_: slow])
    quick.set_result(Written(0))
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(writing.finish, {})
        slow_part = held.write(str(tmp_path), 1, uids, "worker1")
        refuses(lambda: list(read_graphs(step(tmp_path, 1))), "was not written to its end")
        slow.set_result(slow_part)
        assert found.result(10)["hier/store/failed"] == 0
    assert by_uid(read_graphs(tmp_path)) == by_uid([replace(graph, credit=[]) for graph in graphs])


def test_the_updates_of_a_step_add_to_what_it_holds(tmp_path):
    """With `parameter_sync_step` verl trains a step in several updates; one that is made anew replaces all of them."""
    graphs = recorded()
    for _ in range(2):
        held = [HeldRollouts(), HeldRollouts()]
        for number, graph in enumerate(graphs):
            held[number % 2].keep(graph)
        uids = [graph.task["uid"] for graph in graphs]
        with ThreadPoolExecutor(2) as threads:
            writers = [partial(threads.submit, each.write) for each in held]
            writing = StepInStore.begin(str(tmp_path), 1, {uids[0]: True}, writers)
            writing.add({uids[1]: True, uids[2]: False}, writers)
            writing.add(dict.fromkeys(uids[3:], True), writers)
            found = writing.finish({})
        assert found == {"hier/store/failed": 0, "hier/store/missing": 0}
        kept = [replace(graph, credit=[]) for graph in graphs if graph.task["uid"] != uids[2]]
        assert by_uid(read_graphs(tmp_path)) == by_uid(kept)


def test_a_worker_that_is_gone_costs_the_step_in_the_store(tmp_path, caplog):
    """What the others wrote can be read as files, and the count says what is missing."""
    graphs, gone = recorded(), Future()
    gone.set_exception(RayActorError())
    held = HeldRollouts()
    for graph in graphs[:2]:
        held.keep(graph)
    uids = dict.fromkeys((graph.task["uid"] for graph in graphs), True)
    alive = Future()
    alive.set_result(held.write(str(tmp_path), 1, uids, "worker0"))
    found = StepInStore(str(tmp_path), 1, len(graphs), [alive, gone]).finish({})
    assert found == {"hier/store/failed": 1.0, "hier/store/missing": len(graphs) - 2.0}
    assert "a rollout worker is gone" in caplog.text and "The run goes on without it" in caplog.text
    assert set(pq.read_table(step(tmp_path, 1) / "nodes-worker0-0.parquet")["uid"].to_pylist()) == {"task 0", "task 1"}
    assert not (step(tmp_path, 1) / "credit.parquet").exists()
    # What it held may have been nothing of the step.
    assert StepInStore(str(tmp_path), 1, 2, [alive, gone]).finish({}) == {
        "hier/store/failed": 0,
        "hier/store/missing": 0,
    }
    assert (step(tmp_path, 1) / "credit.parquet").exists()


def test_what_a_rollout_worker_cannot_write_is_one_sentence(tmp_path, caplog):
    graphs = recorded()
    graphs[1].nodes[0].extra["thing"] = object()
    assert store_step(tmp_path, 1, graphs, workers=2) == {"hier/store/failed": 1.0, "hier/store/missing": 1.0}
    assert "step_000001" in caplog.text and "'thing'" in caplog.text and "The run goes on" in caplog.text


def test_rollouts_are_edited_before_they_are_held(tmp_path):
    def redact(graph):
        for node in graph.nodes:
            node.text = "x" * len(node.text)

    (graph,) = recorded()[:1]
    held, before = HeldRollouts(), copy.deepcopy(graph)
    held.keep(graph, redact)
    assert held.write(str(tmp_path), 1, {"task 0": True}, "worker0") == Written(1)
    assert graph == before and any(node.text for node in graph.nodes)
    stored = pq.read_table(step(tmp_path, 1) / "nodes-worker0-0.parquet")["text"].to_pylist()
    assert stored == ["x" * len(node.text) for node in graph.nodes]


def test_what_is_not_stored_is_forgotten(tmp_path):
    held = HeldRollouts()
    for graph in recorded():
        held.keep(graph)
    held.write(str(tmp_path), 1, {"task 0": False, "nobody's": True}, "worker0")
    assert held.write(str(tmp_path), 1, {"task 0": True}, "worker0") == Written(0)
    assert not list(tmp_path.iterdir())


BROKEN = [name for name, _ in hostile_files.links()]


@pytest.mark.parametrize("name", BROKEN)
def test_a_graph_whose_parts_do_not_fit_is_refused_in_columns_too(tmp_path, name):
    try:
        graph = RolloutGraph.from_dict(dict(hostile_files.links())[name])
    except GraphError:
        return
    try:
        write_step(tmp_path, 1, [graph])
    except GraphError:
        return
    try:
        list(read_graphs(tmp_path))
    except GraphError as error:
        assert "\n" not in str(error)
    else:
        assert name in ("request", "numbers")  # the place of an episode is its number
        return
    if name not in ("source", "sources", "log-probs", "credit"):  # of which the table reads nothing
        refuses(lambda: read_columns(step(tmp_path, 1)), "step_000001")


def columns_equal(folder, expected):
    table, _ = table_of(read_columns(folder)[1])
    return table_difference(table, expected) is None


@pytest.mark.parametrize("flips", [12, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["nodes-trainer-0", "episodes-trainer-0", "tasks-trainer-0", "credit"])
def test_no_bit_can_change_unseen_or_end_the_process(tmp_path, kind, flips):
    graphs = recorded()
    write_step(tmp_path, 12, graphs)
    expected, file = number_turns(graphs)[0], step(tmp_path) / f"{kind}.parquet"
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    dice = random.Random(kind)
    for number in range(flips):
        changed = bytearray(content)
        changed[dice.randrange(footer, len(content)) if number % 2 else dice.randrange(footer)] ^= 1 << number % 8
        file.write_bytes(changed)
        try:
            assert list(read_graphs(tmp_path)) == graphs, number
            assert columns_equal(step(tmp_path), expected), number
        except HierError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("length", [0, 1, 300])
def test_the_checksum_of_a_footer_is_that_of_its_bytes_whatever_comes_before(tmp_path, length):
    """A file ends with its footer, the length of the footer in four bytes, and PAR1."""
    file, footer = tmp_path / "some.parquet", bytes(range(100)) * 3
    end = footer[:length] + length.to_bytes(4, "little") + b"PAR1"
    for before in (b"", b"PAR1", b"PAR1" + b"x" * 50):
        file.write_bytes(before + end)
        assert writing.footer_checksum(file) == zlib.crc32(end)


def test_columns_of_another_type_are_refused(tmp_path):
    write_step(tmp_path, 12, recorded())
    file = step(tmp_path) / "credit.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(3, "credit", pa.repeat("x", len(table))), file)
    refuses(lambda: list(read_graphs(tmp_path)), "credit.parquet has no column 'credit' of type double")
    pq.write_table(table.set_column(3, "credit", pa.repeat(float("nan"), len(table))), file)
    refuses(lambda: list(read_graphs(tmp_path)), "credit.parquet has a credit that is not a finite number")


@pytest.mark.slow
def test_a_few_bytes_that_stand_for_very_many_tokens_are_refused(tmp_path):
    """Equal values cost a file nothing, and a reader all of its memory."""
    write_step(tmp_path, 12, [rollout_graphs.flat()])
    index, file = (step(tmp_path) / f"{kind}-trainer-0.parquet" for kind in ("tasks", "nodes"))
    nodes = pq.read_table(file)
    many = pa.ListArray.from_arrays([0, *[10**8] * len(nodes)], pa.repeat(pa.scalar(7, pa.int32()), 10**8))
    bomb = nodes.set_column(nodes.column_names.index("action"), "action", many)
    pq.write_table(bomb, file, compression="zstd")
    tasks = pq.read_table(index)
    place = tasks.column_names.index("nodes_checksum")
    sums = pa.array([writing.footer_checksum(file)] * len(tasks), pa.int64())
    pq.write_table(tasks.set_column(place, "nodes_checksum", sums), index)
    assert file.stat().st_size < 10**6
    refuses(lambda: list(read_graphs(tmp_path)), "nodes-trainer-0.parquet is too large")


@pytest.mark.skipif(not os.geteuid(), reason="root may write everywhere")
def test_a_folder_that_must_not_be_written_to_is_named(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    refuses(lambda: write_step(tmp_path / "locked", 1, [rollout_graphs.flat()]), "Permission denied", "step_000001")


def test_what_stands_at_its_bound_comes_back(tmp_path):
    graph = recorded()[0]
    for node in graph.nodes:
        node.segment, node.level = len(graph.nodes), 1000
    graph.check()
    write_step(tmp_path, 1, [graph])
    assert list(read_graphs(tmp_path)) == [graph]


def test_a_step_may_have_a_hundred_times_as_many_bytes_of_tokens_as_its_file(tmp_path, monkeypatch):
    write_step(tmp_path, 1, iter([rollout_graphs.forked()]))
    folder = step(tmp_path, 1)
    _, columns = read_columns(folder)
    size = sum(file.stat().st_size for file in folder.glob("nodes*"))
    tokens = 4 * sum(columns.nodes["n_action"].to_pylist())
    monkeypatch.setattr(reading, "SMALL", 0)
    monkeypatch.setattr(reading, "GROWTH", tokens / size)
    assert read_columns(folder)[1].nodes.equals(columns.nodes)
    monkeypatch.setattr(reading, "GROWTH", (tokens - 1) / size)
    refuses(lambda: read_columns(folder), "is too large: it says that it has")
