"""A run in a process of its own, played by a script: its metrics as they come, its early end, its failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verl_hier.compat.launch import CpuRun, launch
from verl_hier.errors import RolloutError

LOGS = """
import json, os, sys, time
with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as file:
    for step in (1, 2):
        file.write(json.dumps({"step": step, "data": {"reward": step / 2}}) + "\\n")
    file.write('{"step": 3, "da')
print("arguments:", *sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`script(text)` is a run of a module with that text."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(text: str) -> CpuRun:
        (tmp_path / "played.py").write_text(text)
        return CpuRun(tmp_path / "run", ["played", "trainer.test_freq=-1"])

    return run


def test_metrics_of_finished_lines(script):
    run = script(LOGS)
    assert run.records() == []
    seen = []
    records = run.finish(lambda records: bool(seen.append(len(records))))
    assert records == run.records() == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0}]
    assert seen[-1] == 2, "the last steps are shown too"
    assert "arguments: trainer.test_freq=-1 trainer.logger=[console,file]" in run.log.read_text()


def test_enough_ends_a_run_that_would_go_on(script):
    assert len(script(LOGS + "time.sleep(600)").finish(lambda records: len(records) == 2)) == 2


def test_a_failure_names_the_log(script):
    run = script("raise SystemExit('no memory')")
    with pytest.raises(RolloutError, match=r"exit code 1; its messages are in .*run/train\.log"):
        run.finish()
    assert "no memory" in run.log.read_text()


def test_a_watcher_that_raises_leaves_no_process(script):
    run = script("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")

    def give_up(records):
        if run.log.read_text():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run.finish(give_up)
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.log.read_text()), 0)


def test_a_second_run_forgets_the_first(script):
    script(LOGS).finish()
    with pytest.raises(RolloutError):
        script("raise SystemExit(1)").finish()
    assert script("").records() == []


def test_a_run_beyond_its_limit_is_killed(script, tmp_path):
    script("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    with pytest.raises(RolloutError, match=r"longer than 3 s; its messages are in .*run\.log"):
        launch(["played"], tmp_path / "run.log", {}, limit_s=3)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "run.log").read_text()), 0)
