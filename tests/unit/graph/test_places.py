"""Stores on other file systems: written by workers and trainer, read by every reader, and honest when they fail."""

import errno
import itertools
import stat
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import fsspec
import pytest
from typer.testing import CliRunner

from tests.fixtures import rollout_graphs
from tests.fixtures.light import store_step
from tests.fixtures.random_graphs import many_turns
from verl_hier.cli.main import app
from verl_hier.errors import FileError, GraphError, HierError
from verl_hier.graph import read_graphs, write_step
from verl_hier.graph.bounded_reading import require_regular
from verl_hier.graph.columnar import writing
from verl_hier.graph.columnar.held import HeldRollouts
from verl_hier.graph.columnar.reading import read_columns, shards
from verl_hier.graph.places import RemotePath, _reached, place, remove_folder
from verl_hier.graph.steps import MARK, is_whole, step_folder
from verl_hier.ops.offline import compare, credit
from verl_hier.ops.stored import Stored
from verl_hier.training.store import StepInStore
from verl_hier.viewer.steps import Reading, read_steps

NUMBERS = itertools.count()


def recorded(count=3):
    graphs = [rollout_graphs.forked(), rollout_graphs.windowed(), *rollout_graphs.golden()][:count]
    for number, graph in enumerate(graphs):
        graph.task["uid"] = f"task {number}"
        graph.credit = [0.25 * node.turn for node in graph.nodes]
    return graphs


@pytest.fixture
def store():
    """The URL of an empty store in a file system that is not the local one."""
    return f"memory://bucket/run{next(NUMBERS)}/graphs"


def test_paths_are_those_of_the_url():
    step = place("s3://bucket/run/graphs") / "step_000001"
    assert str(step) == "s3://bucket/run/graphs/step_000001" and step.name == "step_000001"
    assert step.parent == place("s3://bucket/run/graphs") == place(place("s3://bucket/run/graphs"))
    assert isinstance(step.parent.with_name("other"), RemotePath)
    assert not isinstance(place("runs/s3"), RemotePath) and not isinstance(place("/runs/a:b"), RemotePath)


def test_a_folder_within_a_folder_of_its_name_is_listed_and_the_folder_itself_is_not(store, monkeypatch):
    system = type(fsspec.filesystem("memory"))
    inner = place(store) / "graphs"
    fsspec.filesystem("memory").pipe_file(str(inner / "step").partition(":/")[2], b"")
    assert [str(entry) for entry in place(store).iterdir()] == [str(inner)]
    listed = system.ls

    def with_itself(self, path, detail=True, **more):
        """As some object stores list a folder."""
        return [{"name": path, "type": "directory", "size": 0}, *listed(self, path, detail=detail, **more)]

    monkeypatch.setattr(system, "ls", with_itself)
    assert [str(entry) for entry in place(store).iterdir()] == [str(inner)]


def test_a_file_url_is_the_local_folder(tmp_path):
    graphs = recorded()
    write_step(f"file://{tmp_path}", 4, graphs)
    assert list(read_graphs(tmp_path)) == list(read_graphs(f"file://{tmp_path}")) == graphs


def test_workers_and_trainer_write_what_every_reader_reads(store, tmp_path):
    graphs = recorded()
    for step in (1, 2):
        assert store_step(store, step, graphs, workers=2) == {"hier/store/failed": 0, "hier/store/missing": 0}
    store_step(tmp_path, 1, graphs, workers=2)
    assert {shard.name for shard in shards(step_folder(store, 1))} == {"worker0-0", "worker1-0"}
    by_uid = {graph.task["uid"]: graph for graph in read_graphs(store)}
    assert by_uid == {graph.task["uid"]: graph for graph in graphs}
    assert list(read_graphs(store, ["task 1"])) == [graphs[1]] * 2
    number, columns = read_columns(step_folder(store, 1))
    there = read_columns(step_folder(tmp_path, 1))[1]
    assert (
        number == 1 and columns.nodes.equals(there.nodes) and columns.heavy("logprobs").equals(there.heavy("logprobs"))
    )
    steps, notes = read_steps(Stored.at(store).graphs)
    assert [step.number for step in steps] == [1, 2] and not notes
    assert steps[0].nodes("task 1").equals(read_steps(tmp_path)[0][0].nodes("task 1"))
    assert compare(["grpo", "rloo"], store).turns == 2 * compare(["grpo", "rloo"], tmp_path).turns > 0
    assert credit("grpo", store, tmp_path / "credit.jsonl") == 2 * sum(len(graph.nodes) for graph in graphs)


def test_the_command_line_takes_a_url(store, tmp_path):
    store_step(store, 1, recorded())
    run = CliRunner().invoke(app, ["credit", store, "--compare", "grpo,rloo"])
    assert run.exit_code == 0 and "rloo" in run.output, run.output
    run = CliRunner().invoke(app, ["view", store, "--html", str(tmp_path / "page.html")])
    assert run.exit_code == 0 and "3 of 3 groups" in run.output, run.output
    run = CliRunner().invoke(app, ["view", f"{store}/missing"])
    assert run.exit_code == 2 and "does not exist" in run.output


def test_a_step_that_is_written_again_is_noticed_and_replaced(store):
    store_step(store, 1, recorded())
    before = Reading(place(store))
    before.read_one()
    store_step(store, 1, recorded(2))
    after = Reading(place(store), before)
    assert after.unread == 1, "the time of the change tells the two apart"
    after.read_one()
    assert [len(step.uids()) for step in after.found()[0]] == [2]


def test_the_index_comes_after_its_files_and_the_mark_last(store, monkeypatch):
    """There may be no rename, so what is seen of a step in between must not look whole."""
    sent = []
    system = type(fsspec.filesystem("memory"))
    put = system.put_file
    monkeypatch.setattr(
        system, "put_file", lambda self, *paths, **more: (sent.append(paths[1]), put(self, *paths, **more))
    )
    monkeypatch.setattr(writing, "TURNS_TOGETHER", 4)
    monkeypatch.setattr(writing, "GROUPS_TOGETHER", 1)
    store_step(store, 1, [many_turns(2, 3, uid) for uid in "abc"])
    names = [name.rpartition("/")[2] for name in sent]
    assert names[-2:] == [MARK, "README.md"]
    for number in range(3):
        places = {kind: names.index(f"{kind}-worker0-{number}.parquet") for kind in ("tasks", "nodes", "episodes")}
        assert places["tasks"] == max(places.values())


def test_a_step_without_its_mark_is_left_out(store):
    graphs = recorded()
    store_step(store, 1, graphs)
    held = HeldRollouts()
    held.keep(graphs[0])
    assert held.write(store, 2, {"task 0": True}, "worker0").tasks == 1
    assert not is_whole(step_folder(store, 2)) and len(list(read_graphs(store))) == len(graphs)
    with pytest.raises(GraphError, match="was not written to its end"):
        list(read_graphs(step_folder(store, 2)))


def test_the_oldest_steps_are_removed(store):
    for step in (1, 2, 3):
        store_step(store, step, recorded(), max_gib=1e-9)
    assert [step.number for step in read_steps(place(store))[0]] == [3]
    assert not step_folder(store, 1).exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense://bucket/graphs", "Protocol not known"),
        ("abfs://bucket/graphs", "package for its file system is missing"),
    ],
)
def test_a_file_system_that_is_not_there_is_one_sentence(url, words, caplog):
    if url.startswith("abfs"):
        pytest.importorskip("fsspec")
        if fsspec.utils.get_package_version_without_import("adlfs"):
            pytest.skip("its package is installed")
    with pytest.raises(HierError, match=words) as caught:
        write_step(url, 1, recorded())
    assert url in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(HierError, match=words) as caught:
        list(read_graphs(url))
    assert url in str(caught.value) and "\n" not in str(caught.value)
    assert store_step(url, 1, recorded()) == {"hier/store/failed": 1, "hier/store/missing": 3}
    assert words in caplog.text and "The run goes on without it" in caplog.text


@pytest.mark.parametrize(
    ("protocol", "package", "kind"), [("s3", "s3fs", "S3FileSystem"), ("gs", "gcsfs", "GcsFileSystem")]
)
def test_a_bucket_is_reached_by_arrow_where_fsspec_lacks_a_package(protocol, package, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    system, name = _reached(f"{protocol}://bucket/run/graphs")
    assert type(system.fs).__name__ == kind and name == "bucket/run/graphs"


def test_a_bucket_that_cannot_be_reached_is_one_sentence(store, monkeypatch, caplog):
    """The file system raises an error of its own in the middle of a run."""
    store_step(store, 1, recorded())

    def lost(*_, **__):
        raise RuntimeError("no route to the bucket.\nmore")

    for method in ("put_file", "_open", "info", "ls"):
        monkeypatch.setattr(type(fsspec.filesystem("memory")), method, lost)
    with pytest.raises(HierError, match="no route to the bucket") as caught:
        list(read_graphs(store))
    assert "\n" not in str(caught.value)
    assert store_step(store, 2, recorded())["hier/store/failed"] == 1
    assert "no route to the bucket" in caplog.text
    with pytest.raises(OSError, match="no route") as refused:
        place(store).exists()
    assert refused.value.errno == errno.EIO and refused.value.filename == store


def test_a_worker_whose_writing_fails_costs_the_step_and_not_the_run(store, monkeypatch):
    system = type(fsspec.filesystem("memory"))
    put = system.put_file

    def fails(self, local, remote, **more):
        if "tasks-" in remote:
            raise TimeoutError("slow")
        return put(self, local, remote, **more)

    monkeypatch.setattr(system, "put_file", fails)
    assert store_step(store, 1, recorded()) == {"hier/store/failed": 1, "hier/store/missing": 3}
    assert not (step_folder(store, 1) / MARK).exists()
    assert StepInStore.begin(store, 1, {}, []).problem is None, "what is left can be written over"
    assert not list(step_folder(store, 1).glob("*.parquet"))


def test_a_folder_that_its_file_system_lists_in_itself_is_no_entry_of_its_own(monkeypatch):
    """Some servers list the folder itself; a folder or a file below it may have its name, and is another thing."""
    listed = [
        ("bucket/run", "directory"),
        ("bucket/run/run", "directory"),
        ("bucket/run/other", "directory"),
        ("bucket/run/file", "file"),
    ]
    monkeypatch.setattr(
        RemotePath, "_call", lambda *_, **__: [{"name": name, "type": kind, "size": 0} for name, kind in listed]
    )
    found = sorted((entry.name, entry.is_dir()) for entry in place("memory://bucket/run").iterdir())
    assert found == [("file", False), ("other", True), ("run", True)]


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"mtime": 12.75}, 12.75),
        ({"LastModified": datetime(2026, 1, 2, tzinfo=timezone.utc)}, 1767312000.0),
        ({"mtime": None, "created": "2026-01-02T00:00:01+00:00"}, 1767312001.0),
        ({"mtime": 5, "created": 7}, 5.0),
        ({}, 0.0),
    ],
)
def test_kind_size_and_time_are_those_that_the_file_system_says(monkeypatch, said, seconds):
    info = {"type": "file", "size": 7, **said}
    monkeypatch.setattr(RemotePath, "_call", lambda *_, **__: info)
    file = place("memory://bucket/file")
    found = file.stat()
    assert stat.S_ISREG(found.st_mode) and file.is_file() and not file.is_dir() and file.exists()
    assert found.st_size == 7 and found.st_mtime_ns == seconds * 1e9
    assert found.st_mtime == found.st_ctime == found.st_atime == int(seconds) and found.st_nlink == 1
    assert found.st_uid == found.st_gid == found.st_ino == found.st_dev == 0
    info |= {"type": "directory", "size": None}
    assert stat.S_ISDIR(file.stat().st_mode) and file.stat().st_size == 0 and file.is_dir() and not file.is_file()


def test_what_is_not_there_is_none_of_both():
    missing = place(f"memory://bucket/missing{next(NUMBERS)}/file")
    assert not missing.exists() and not missing.is_dir() and not missing.is_file() and not [*missing.glob("*")]
    missing.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError) as caught:
        missing.unlink()
    assert caught.value.errno == errno.ENOENT and caught.value.filename == str(missing)
    with pytest.raises(FileNotFoundError):
        missing.stat()


def test_a_size_that_cannot_be_asked_for_is_said_with_its_reason(monkeypatch):
    file = place("memory://bucket/file")
    for error, said in ((PermissionError("no rights"), "cannot be read: no rights"), (FileNotFoundError(), "no file")):
        monkeypatch.setattr(RemotePath, "stat", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        with pytest.raises(FileError, match=said):
            require_regular(file)


def test_entries_are_found_by_a_pattern_and_removed_with_their_folder(store):
    folder = place(store)
    for name in ("b.txt", "a.txt", "c.md"):
        with (folder / name).written() as beside:
            beside.write_text(name)
    assert sorted(entry.name for entry in folder.glob("*.txt")) == ["a.txt", "b.txt"]
    assert (folder / "a.txt").open().read() == "a.txt" and (folder / "a.txt").stat().st_size == 5
    assert (folder / "a.txt").resolve() == folder / "a.txt"
    (folder / "a.txt").unlink()
    assert sorted(entry.name for entry in folder.iterdir()) == ["b.txt", "c.md"]
    remove_folder(folder)
    assert not folder.exists()


NAMES_ALONE = {
    "as_posix", "as_uri", "cwd", "expanduser", "home", "is_absolute", "is_relative_to", "is_reserved", "joinpath",
    "match", "relative_to", "with_name", "with_segments", "with_stem", "with_suffix",
}  # fmt: skip
"""Methods of a path that look at no file, or at none of its own."""
MORE = {
    "write_text": ["x"], "write_bytes": [b"x"], "samefile": ["/"], "rename": ["other"], "replace": ["other"],
    "symlink_to": ["other"], "hardlink_to": ["other"], "link_to": ["other"], "chmod": [0o700], "lchmod": [0o700],
    "glob": ["*"], "rglob": ["*"],
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(name for name, of in vars(Path).items() if name[0] != "_" and callable(of)))
def test_no_method_of_a_remote_place_looks_at_a_file_of_this_machine(method, tmp_path, monkeypatch):
    if method in NAMES_ALONE:
        return
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "memory:" / "there" / "file"
    here.parent.mkdir(parents=True)
    here.write_text("of this machine")
    before = sorted((path, path.stat().st_mtime_ns, path.stat().st_mode) for path in tmp_path.rglob("*"))
    remote = place("memory://there/file")
    fsspec.filesystem("memory").pipe_file("/there/file", b"of another one")
    try:
        found = getattr(remote, method)(*MORE.get(method, []))
        assert (list(found) if isinstance(found, Iterator) else found) not in ("of this machine", b"of this machine")
    except OSError as error:
        assert "memory://there/file" in str(error)
    finally:
        fsspec.filesystem("memory").store.clear()
    assert sorted((path, path.stat().st_mtime_ns, path.stat().st_mode) for path in tmp_path.rglob("*")) == before
