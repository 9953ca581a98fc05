"""Nothing of a run outlives who asked for it, and nobody writes where another one does."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.fixtures.tiers import spread
from tests.fixtures.trainer import processes_with
from verl_hier.compat.checkpoints import TRACKER, WRITER, claim, mark_whole, mend_tracker, newest_whole
from verl_hier.errors import HierError, RecipeError

TREE = """
import os, subprocess, sys, time
sleeper = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)"
daemon = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", sleeper])
subprocess.run([sys.executable, "-c", daemon])
print("ready", flush=True)
time.sleep(600)
"""
"""A process with a child and an orphan in a session of its own, which ignore what can be ignored."""
CALL = (
    "from pathlib import Path; from verl_hier.compat import launch; launch.GRACE_S = 1.0; "
    "launch.launch(['played'], Path({log!r}), {{'MARK': {mark!r}}})"
)


def of_run(mark: str) -> list[tuple[psutil.Process, list[str]]]:
    """The living processes that have the mark of a run in their environment, and their command lines."""
    return processes_with("MARK", mark)


def wait_for(ready: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[subprocess.Popen[bytes], str]:
    """A process that has launched `TREE`, and the mark of all of its processes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    (tmp_path / "played.py").write_text(TREE)
    mark, log = str(tmp_path), tmp_path / "run.log"
    process = subprocess.Popen([sys.executable, "-c", CALL.format(log=str(log), mark=mark)], stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and "ready" in log.read_text() and len(of_run(mark)) >= 4)
    return process, mark


def test_a_killed_caller_leaves_nothing(caller: tuple[subprocess.Popen[bytes], str]) -> None:
    process, mark = caller
    process.kill()
    process.wait()
    wait_for(lambda: not of_run(mark))


@pytest.mark.parametrize("seed", range(4))
def test_whichever_process_is_killed_all_end(caller: tuple[subprocess.Popen[bytes], str], seed: int) -> None:
    """The keeper, the command, its child or its orphan: the first two end the run, the others are only missed."""
    process, mark = caller
    found = sorted((each for each, _ in of_run(mark)), key=lambda each: each.pid)
    victim = found[seed % len(found)]
    victim.kill()
    ends = seed % len(found) < 2
    if not ends:
        process.send_signal(signal.SIGTERM)
    assert process.wait(120) is not None
    wait_for(lambda: not of_run(mark))


def test_the_exit_code_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_hier.compat.launch import launch

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "played.py").write_text("import os, signal, sys; os.kill(os.getpid(), int(sys.argv[1]))")
    number = random.Random(0).choice([signal.SIGSEGV, signal.SIGABRT])
    assert launch(["played", str(int(number))], tmp_path / "log", {}) == 128 + number


def test_one_writer_of_checkpoints_at_a_time(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from verl_hier.compat.checkpoints import claim; "
    code += "kept = claim(Path(sys.argv[1])); print('claimed', flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"claimed\n"
    with pytest.raises(RecipeError, match=rf"process {holder.pid} on .* is training in {tmp_path}; end it"):
        claim(tmp_path)
    holder.kill()
    holder.wait()
    claim(tmp_path).close()
    assert f"process {os.getpid()} on " in (tmp_path / WRITER).read_text()


@pytest.mark.parametrize(("text", "newest"), [("3", 3), ("", 2), ("junk", 2), ("9", None)])
def test_the_newest_whole_checkpoint(tmp_path: Path, text: str, newest: int | None) -> None:
    """A kill while verl writes the name of the newest one leaves an empty file."""
    for step in (1, 2, 3):
        (tmp_path / f"global_step_{step}").mkdir()
    for step in (1, 2):
        mark_whole(tmp_path / f"global_step_{step}")
    assert newest_whole(tmp_path) is None
    (tmp_path / TRACKER).write_text(text)
    assert newest_whole(tmp_path) == (None if newest is None else tmp_path / f"global_step_{newest}")
    mend_tracker(tmp_path)
    assert (tmp_path / TRACKER).read_text() == (text if text.isdecimal() else str(newest))


def test_a_tracker_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / TRACKER).write_text("../../etc")
    with pytest.raises(HierError, match="does not hold the number of a step"):
        newest_whole(tmp_path)


RAY = """
import sys, time, ray
from verl_hier.runtime_cpu.prefork.driver import Template, python

template = Template([])
ray.init(address="local", num_cpus=1, include_dashboard=False, runtime_env={"py_executable": python(template.address)})

@ray.remote(num_cpus=0)
class Worker:
    def work(self, seconds):
        time.sleep(seconds)

worker = Worker.remote()
ray.get(worker.work.remote(0.1))
print("ready", flush=True)
work = worker.work.remote(float(sys.argv[1]))
if sys.argv[2:]:
    time.sleep(600)
ray.get(work)
print("over", flush=True)
"""
"""A second argument: it waits for what the worker does without asking for it."""


@pytest.mark.slow
def test_a_process_that_dies_young_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits for it without a word ends, although it was lost seconds after its start."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setenv("VERL_HIER_LOST_S", "5")
    (tmp_path / "played.py").write_text(RAY)
    mark, log = str(tmp_path), tmp_path / "run.log"
    call = CALL.format(log=str(log), mark=mark).replace("['played']", "['played', '600', 'silent']")
    caller = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    (keeper,) = (each for each, words in of_run(mark) if any(word.endswith("keeper.py") for word in words))
    # It looks at the processes at each fifth of its waits; they are counted since it may get little of the processor.
    waits = keeper.num_ctx_switches().voluntary
    wait_for(lambda: keeper.num_ctx_switches().voluntary >= waits + 20)
    (worker,) = (each for each, words in of_run(mark) if words[0].startswith("ray::Worker"))
    worker.kill()
    assert caller.wait(300) is not None
    assert f"the process ray::Worker ({worker.pid}) of the run has died" in log.read_text()
    assert not of_run(mark)


@pytest.mark.parametrize("victim", spread(2, ["caller", "main", "nobody", "raylet", "ray::Worker"], pytest.mark.slow))
def test_nothing_of_ray_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    """Ray's daemons and workers under the keeper: none outlives who asked for them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setenv("VERL_HIER_LOST_S", "30")
    (tmp_path / "played.py").write_text(RAY)
    mark, log = str(tmp_path), tmp_path / "run.log"
    seconds = "1" if victim == "nobody" else "600"
    call = CALL.format(log=str(log), mark=mark).replace("['played']", f"['played', '{seconds}']")
    caller = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    named = {"main": "-m played", "raylet": "/raylet ", "ray::Worker": "ray::Worker"}.get(victim, "")
    if victim == "caller":
        caller.kill()
    elif named:
        below = [each for each, words in of_run(mark) if named in " ".join([*words, ""])]
        min(below, key=lambda each: each.pid if victim != "main" else -each.pid).kill()
    caller.wait(300)
    wait_for(lambda: victim != "caller" or not of_run(mark))
    assert not of_run(mark)
    assert ("over" in log.read_text().splitlines()) == (victim == "nobody")
