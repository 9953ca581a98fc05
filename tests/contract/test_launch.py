"""Processes of verl, played by a script: what they print, how they end, and that nothing of them is left."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_hier.compat import launch as launches
from verl_hier.compat.launch import Tail, in_use, launch, read_metrics
from verl_hier.errors import FileError, RolloutError

SLEEPS = """
import os, signal, subprocess, sys, time
text = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", text])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
"""A process with a child that only SIGKILL ends."""

Script = Callable[..., list[str]]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """`script(text)` writes a module with that text and returns the arguments that run it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text: str) -> list[str]:
        (tmp_path / "played.py").write_text(text)
        return ["played", "an argument"]

    return write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


LATE = """
from pathlib import Path
starts = Path("starts")
starts.write_text(str(int(starts.read_text()) + 1) if starts.exists() else "1")
if int(starts.read_text()) <= {late}:
    raise Exception("The current node timed out during startup. This could happen because ...")
raise SystemExit({ends})
"""
"""A process whose Ray is late the first times, as Ray 2.60 says it (`_private/node.py`)."""


@pytest.mark.parametrize(
    ("late", "ends", "started", "code"), [(0, 0, 1, 0), (2, 0, 3, 0), (1, 5, 2, 5), (3, 0, 3, 1), (0, 5, 1, 5)]
)
def test_a_process_whose_ray_is_late_is_started_again(
    script: Script, log: Path, tmp_path: Path, late: int, ends: int, started: int, code: int
) -> None:
    log.write_text("The current node timed out during startup: said by an earlier run.\n")
    assert launch(script(LATE.format(late=late, ends=ends)), log, {}, append=True, folder=tmp_path) == code
    assert (tmp_path / "starts").read_text() == str(started)
    assert log.read_text().count("once more") == started - 1


def test_what_ray_says_is_in_its_source() -> None:
    source = Path(importlib.util.find_spec("ray._private.node").origin or "").read_text()  # type: ignore[union-attr]
    assert launches.LATE.decode() in source


def pids(log: Path) -> list[int]:
    """The processes that `SLEEPS` has printed; empty until then."""
    return [int(word) for word in log.read_text().split()] if log.exists() else []


def alive(log: Path) -> list[int]:
    assert len(pids(log)) == 2
    return [pid for pid in pids(log) if Path(f"/proc/{pid}/stat").exists() and not zombie(pid)]


def zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_hier.compat.launch.GRACE_S", 1.0)


def test_output_and_exit_code_come_back(script: Script, log: Path, tmp_path: Path) -> None:
    text = "import os, sys; print(os.environ['WORD'], sys.argv[1], os.getcwd()); sys.exit('no memory')"
    assert launch(script(text), log, {"WORD": "word"}, folder=tmp_path) == 1
    assert log.read_text() == f"word an argument {tmp_path}\nno memory\n"
    assert launch(script("print('again')"), log, {}, append=True) == 0
    assert log.read_text().endswith("no memory\nagain\n")
    assert launch(script("print('anew')"), log, {}) == 0
    assert log.read_text() == "anew\n"


def test_a_killed_process_has_the_shells_code(script: Script, log: Path) -> None:
    assert launch(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), log, {}) == 137


def test_a_watcher_ends_the_process_and_its_children(script: Script, log: Path) -> None:
    assert launch(script(SLEEPS), log, {}, lambda process: bool(pids(log))) is None
    assert not alive(log)


def test_a_watcher_that_raises_leaves_no_process(script: Script, log: Path) -> None:
    def give_up(process: subprocess.Popen[bytes]) -> bool:
        assert not pids(log)
        return False

    with pytest.raises(AssertionError):
        launch(script(SLEEPS), log, {}, give_up)
    assert not alive(log)


def test_children_of_a_process_that_is_gone_end_too(script: Script, log: Path) -> None:
    def kill(process: subprocess.Popen[bytes]) -> bool:
        if pids(log):
            process.kill()
        return False

    assert launch(script(SLEEPS), log, {}, kill) == 137
    assert not alive(log)


def test_a_run_beyond_its_limit_is_ended(script: Script, log: Path) -> None:
    with pytest.raises(RolloutError, match=r"longer than 3 s; its messages are in .*run\.log"):
        launch(script(SLEEPS), log, {}, limit_s=3)
    assert not alive(log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_process_and_its_children(script: Script, log: Path, number: signal.Signals) -> None:
    """In a process of its own, as a terminal or a scheduler would send them."""
    script(SLEEPS)
    call = (
        # A shell that starts the tests in the background has them ignore SIGINT, and `nohup` has them ignore SIGHUP.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from pathlib import Path; from verl_hier.compat import launch; launch.GRACE_S = 1.0; "
        f"launch.launch(['played'], Path({str(log)!r}), {{}})"
    )
    caller = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(pids(log)) == 2)
    caller.send_signal(number)
    assert caller.wait(600) == (-signal.SIGINT if number == signal.SIGINT else 128 + number)
    assert not alive(log)


def test_one_process_at_a_time_writes_to_a_log(script: Script, log: Path) -> None:
    arguments, stop = script(SLEEPS), threading.Event()
    assert not in_use(log)
    thread = threading.Thread(target=launch, args=(arguments, log, {}, lambda process: stop.is_set()))
    thread.start()
    wait_for(lambda: bool(pids(log)))
    printed = log.read_text()
    assert in_use(log)
    with pytest.raises(RolloutError, match=r"another run is under way in this folder: it writes to .*run\.log"):
        launch(script("print('second')"), log, {})
    assert log.read_text() == printed
    stop.set()
    thread.join()
    assert not in_use(log)


def test_a_log_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(FileError, match="not a regular file"):
        in_use(tmp_path / "log")


def wait_for(ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.05)


def test_finished_lines_are_read_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.lines() == [] and read_metrics(file) == []
    file.write_text('{"step": 1, "data": {"reward": 0.5}}\n{"step": 2, "da')
    assert len(tail.lines()) == 1 and tail.lines() == []
    with file.open("a") as stream:
        stream.write('ta": {"reward": 1.0}}\n')
    assert tail.lines() == [b'{"step": 2, "data": {"reward": 1.0}}\n']
    assert read_metrics(file) == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0}]
    assert Tail(file, file.stat().st_size).lines() == []
