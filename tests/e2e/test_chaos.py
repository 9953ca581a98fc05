"""Random processes of a run are killed at random moments: nothing lives on, and its history is as if in peace."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.fixtures.trainer import Run, processes_of_runs, trainer_slot
from verl_hier.graph import read_graphs
from verl_hier.ops import runs as ops

SAME = ("hier/episodes/return_mean", "hier/tokens/generated", "actor/grad_norm", "actor/pg_loss")
LOST_S = 20
"""Seconds that a run has to notice by itself that it has lost a process."""
GONE_S = 5


class Killer:
    """Kills a random process below a run, once, some time after its start or after one of its steps."""

    def __init__(self, chance: random.Random, metrics: Path) -> None:
        self.killed: str | None = None
        self._chance = chance
        self._metrics = metrics
        self._steps = chance.randrange(4)
        self._when: float | None = None

    def __call__(self, process: subprocess.Popen[bytes]) -> bool:
        done = len(self._metrics.read_text().splitlines()) if self._metrics.exists() else 0
        if self._when is None and done >= self._steps:
            self._when = time.monotonic() + self._chance.uniform(0, 20)
        if self.killed is None and self._when is not None and time.monotonic() > self._when:
            try:
                below = psutil.Process(process.pid).children(recursive=True)
                victim = self._chance.choice([process.pid, *(child.pid for child in below)])
                self.killed = " ".join(psutil.Process(victim).cmdline())[:60]
                os.kill(victim, 9)
            except (psutil.Error, ProcessLookupError):
                self.killed = None
        return False


def history(runs: list[Run]) -> dict[int, dict[str, float]]:
    """What survives of several attempts: of each step what was logged last."""
    return {step["step"]: {name: step[name] for name in SAME} for run in runs for step in run.steps}


def credited(file: Path) -> dict[int, object]:
    return {graph.task["index"]: ([node.action for node in graph.nodes], graph.credit) for graph in read_graphs(file)}


@pytest.mark.parametrize(
    ("steps", "kills"),
    [pytest.param(8, 5, marks=pytest.mark.long), pytest.param(30, 20, marks=pytest.mark.long)],
)
def test_killed_again_and_again(train, tmp_path, monkeypatch, steps, kills):
    monkeypatch.setenv("VERL_HIER_LOST_S", str(LOST_S))
    chance = random.Random(kills)

    def settings(name: str) -> list[str]:
        store = f"hier.store.path={tmp_path / name / 'graphs'}"
        return ["trainer.save_freq=1", f"trainer.total_training_steps={steps}", store]

    whole = train("himac_bytes", settings("whole"), "whole")
    assert whole.code == 0, whole.log[-3000:]
    runs: list[Run] = []
    killed: list[str] = []
    while not runs or runs[-1].code != 0:
        number = len(list((tmp_path / "parts").glob("output_*")))
        killer = Killer(chance, tmp_path / "parts" / f"metrics_{number}.jsonl")
        runs.append(
            train("himac_bytes", settings("parts"), "parts", killer if len(killed) < kills else lambda p: False)
        )
        killed += [killer.killed] if killer.killed else []
        assert not processes_of_runs(), f"left after the end of {killer.killed}"
        assert len(runs) <= 2 * kills + 2, (killed, runs[-1].log[-3000:])
    assert history(runs) == history([whole]) and sorted(history(runs)) == list(range(1, steps + 1)), killed
    for step in range(1, steps + 1):
        one, two = (credited(tmp_path / name / "graphs" / f"step_{step:06d}") for name in ("whole", "parts"))
        assert one == two, (step, killed)


@pytest.mark.long
def test_the_command_is_killed_at_random_moments(byte_model, probes, tmp_path):
    """SIGKILL of `verl-hier train`: after five seconds nothing of the run is left, and the same command goes on."""
    kills = 10
    chance = random.Random(kills)
    recipe = [str(probes / "himac_bytes.yaml"), f"actor_rollout_ref.model.path={byte_model}"]
    given = ["trainer.save_freq=1", f"trainer.total_training_steps={3 + 2 * kills}", "--name", "killed"]
    run = ops.Run(tmp_path / "runs" / "himac_bytes" / "killed")
    (tmp_path / "probe").mkdir()
    variables = {"PYTHONPATH": str(probes), "PROBE_FOLDER": str(tmp_path / "probe"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "verl_hier.cli.main", "train", *recipe, *given]
    log = tmp_path / "log"
    with trainer_slot():
        for number in range(kills + 1):
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command, cwd=tmp_path, env={**os.environ, **variables}, stdout=file, stderr=file
                )
            if number == kills:
                assert process.wait() == 0, log.read_text()[-3000:]
                break
            moment = time.monotonic() + chance.uniform(1, 90)
            # A fast machine must not come to the end of the run before the last kill.
            while time.monotonic() < moment and process.poll() is None and len(run.metrics()) <= 2 * number:
                time.sleep(0.1)
            process.kill()
            process.wait()
            time.sleep(GONE_S)
            assert not processes_of_runs()
    assert "step " in log.read_text()
