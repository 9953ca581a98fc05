"""What breaks costs what it must and nothing more; nothing is dropped in silence."""

from __future__ import annotations

import re
import subprocess
import time

import psutil
import pytest

from .conftest import LIMIT_S, command

pytestmark = pytest.mark.e2e


def test_a_world_that_raises_hangs_or_dies_costs_its_own_episodes(train):
    run = train(
        "grpo_bytes",
        [
            "+hier.environment.faults=true",
            "hier.rollout.time_limit_s=2",
            "hier.rollout.max_failed_share=1.0",
            "actor_rollout_ref.rollout.n=16",
            "trainer.total_training_steps=2",
        ],
    )
    assert run.code == 0, run.log[-3000:]
    for step in run.steps:
        kinds = ("raised", "timeout", "killed", "replay_mismatch")
        faults = [step.get(f"hier/counts/failed_{kind}", 0) for kind in kinds]
        assert sum(faults) == step["hier/episodes/failed"]
        assert faults[-1] == 0
        assert step["hier/episodes/count"] == 2 * 16
        assert step["hier/rows/trained"] == 2 * 16 - step["hier/episodes/failed"]
    kinds = {name for step in run.steps for name in step if name.startswith("hier/counts/failed_")}
    assert len(kinds) >= 2, kinds


def test_a_lost_server_stops_the_run_and_it_can_be_resumed(train, byte_model, probes, environment, tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    overrides = [
        f"trainer.default_local_dir={folder}/checkpoints",
        "trainer.save_freq=1",
        "trainer.total_training_steps=500",
    ]
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        command("grpo_bytes", byte_model, probes, overrides), cwd=folder, env=environment, stdout=log, stderr=log
    )
    deadline = time.time() + LIMIT_S
    while not list(folder.glob("checkpoints/latest_checkpointed_iteration.txt")):
        assert process.poll() is None and time.time() < deadline, (folder / "log").read_text()[-3000:]
        time.sleep(0.2)
    servers = [p for p in psutil.Process(process.pid).children(recursive=True) if "TransformersServer" in p.name()]
    servers = servers or [
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if any("TransformersServer" in part for part in p.cmdline())
    ]
    assert servers
    for server in servers:
        server.kill()
    assert process.wait(timeout=LIMIT_S) != 0
    text = (folder / "log").read_text()
    assert re.search(r"rollout server is gone .*trainer\.resume_mode", text), text[-3000:]
    done = int((folder / "checkpoints/latest_checkpointed_iteration.txt").read_text())
    again = train("grpo_bytes", [*overrides, f"trainer.total_training_steps={done + 1}"], "killed")
    assert again.code == 0, again.log[-3000:]
    assert [step["step"] for step in again.steps] == [done + 1]


def test_a_full_disk_costs_the_file_not_the_run(train, tmp_path):
    (tmp_path / "graphs").write_text("a file where a folder is wanted")
    run = train("grpo_bytes", [f"hier.store.path={tmp_path}/graphs", "trainer.total_training_steps=1"])
    assert run.code == 0, run.log[-3000:]
    assert run.metric("hier/store/failed") == [1.0]
    assert "The run goes on without it (hier.store.path)" in run.log
