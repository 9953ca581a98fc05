"""A disk that is full costs one sentence, which names the file and what to change.

The disk is `/dev/full`, to which every write fails as to a full disk, or a limit on the size of this process's files.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.light import store_step
from verl_hier.cli import main as command_line
from verl_hier.compat.checkpoints import claim, told_when_full
from verl_hier.errors import GraphError, HierError, RolloutError, disk_full
from verl_hier.graph import read_graphs, write_graphs
from verl_hier.graph.atomic_write import atomic_write, write_records

FULL = "No space left on device"


def fill(target: Path) -> None:
    """Let the file that is written in place of `target` lie on a full disk."""
    target.with_name(f"{target.name}.{os.getpid()}.part").symlink_to("/dev/full")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow beyond a size: what a quota does."""
    before, known = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Python does not notice that a compiled module is cut, and every later process would stumble over it.
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = compiles
        signal.signal(signal.SIGXFSZ, known)


@pytest.mark.parametrize("name", ["graphs.jsonl", "graphs.jsonl.gz", "graphs.parquet"])
def test_graphs(tmp_path, name):
    target = tmp_path / name
    write_graphs(target, [rollout_graphs.flat()])
    whole = target.read_bytes()
    fill(target)
    with pytest.raises(GraphError) as caught:
        write_graphs(target, [rollout_graphs.flat()] * 3)
    assert str(caught.value) == (
        f"cannot write rollout graphs to {target}: {FULL}; make room there, or write to another disk."
    )
    assert target.read_bytes() == whole and list(read_graphs(target)), "the old file is still there"
    assert list(tmp_path.iterdir()) == [target], "and nothing beside it"


@pytest.mark.parametrize("name", ["nodes-worker0-0", "tasks-worker0-0", "credit"])
def test_a_step_of_the_store(tmp_path, name, caplog):
    (tmp_path / "step_000001").mkdir()
    fill(tmp_path / "step_000001" / f"{name}.parquet")
    assert store_step(tmp_path, 1, [rollout_graphs.flat()])["hier/store/failed"] == 1
    assert not (tmp_path / "step_000001" / "credit.parquet").exists(), "the step does not count as whole"
    assert FULL in caplog.text and "The run goes on without it (hier.store.path)." in caplog.text


@pytest.mark.parametrize("name", ["records.jsonl", "records.parquet"])
def test_records_of_commands(tmp_path, name):
    target = tmp_path / name
    fill(target)
    with pytest.raises(OSError, match=FULL) as caught:
        write_records(target, [{"text": "x" * 10_000}])
    assert caught.value.filename == str(target)
    sentence = command_line.sentence_of(caught.value)
    assert sentence == f"{target} cannot be written: {FULL}; make room there, or write to another disk."


def test_a_command(tmp_path, monkeypatch, capsys):
    graphs, out = tmp_path / "graphs.jsonl", tmp_path / "new.jsonl"
    write_graphs(graphs, [rollout_graphs.flat()])
    fill(out)
    monkeypatch.setattr("sys.argv", ["verl-hier", "credit", str(graphs), "--estimator", "grpo", "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    said = capsys.readouterr().err.strip()
    assert end.value.code and len(said.splitlines()) == 1 and str(out) in said and FULL in said and "make room" in said


def test_a_checkpoint(tmp_path):
    """What torch says of a full disk does not name it."""
    torch = pytest.importorskip("torch")
    with pytest.raises(RolloutError) as caught, told_when_full(tmp_path), files_of_at_most(1000):
        torch.save({"weights": torch.zeros(100_000)}, tmp_path / "model.pt")
    said = str(caught.value)
    assert said.startswith(f"trainer.default_local_dir: a checkpoint cannot be written to {tmp_path}: ")
    assert "make room there" in said and "trainer.max_actor_ckpt_to_keep" in said and "\n" not in said
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_quota(tmp_path):
    with (
        pytest.raises(RolloutError, match="File too large; make room"),
        told_when_full(tmp_path),
        files_of_at_most(100),
    ):
        (tmp_path / "state.json").write_text("x" * 1000)
    with pytest.raises(RolloutError, match="File too large"), told_when_full(tmp_path), files_of_at_most(0):
        claim(tmp_path / "run")
    with pytest.raises(OSError, match="File too large") as caught, files_of_at_most(100), atomic_write(tmp_path / "a"):
        (tmp_path / f"a.{os.getpid()}.part").write_text("x" * 1000)
    assert caught.value.filename == str(tmp_path / "a")


def test_other_errors_are_left_alone(tmp_path):
    for error in (ValueError("x"), PermissionError(13, "Permission denied", "x"), HierError("x")):
        assert disk_full(error) is None
        with pytest.raises(type(error)) as caught, told_when_full(tmp_path):
            raise error
        assert caught.value is error
    with pytest.raises(FileNotFoundError) as caught, atomic_write(tmp_path / "a"):
        (tmp_path / "nothing").read_text()
    assert caught.value.filename == str(tmp_path / "nothing")


def test_an_error_that_ray_has_carried():
    carried, inner = RuntimeError("ray::save()"), OSError(28, FULL)
    carried.cause = inner
    assert disk_full(carried) == FULL
    inner.__cause__ = carried  # a circle
    assert disk_full(ValueError("x")) is None and disk_full(RuntimeError(f"[Errno 28] {FULL}: 'x'")) == FULL
