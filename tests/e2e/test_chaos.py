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
from verl_hier.compat.checkpoints import newest_whole
from verl_hier.compat.launch import read_metrics
from verl_hier.graph import read_graphs
from verl_hier.ops import runs as ops

SAME = ("hier/episodes/return_mean", "hier/tokens/generated", "actor/grad_norm", "actor/pg_loss")
LOST_S = 20
"""Seconds that a run has to notice by itself that it has lost a process."""
GONE_S = 5
START_S, STEP_S = 20, 2
"""Seconds in which a process is killed at a run's start, which takes longer, and after a step."""


class Killer:
    """Kills random processes below a run: one some time after its start or after one of its steps, and where the run
    survives that, others after later steps."""

    def __init__(self, chance: random.Random, metrics: Path, first: int, last: int, kills: int) -> None:
        """
        Args:
            chance: decides.
            metrics: file of the run's metrics.
            first: the run's first step.
            last: its last one; no kill waits for a step that is close to it, because the run could end before.
            kills: at most so many.
        """
        self.killed: list[str] = []
        self._chance, self._metrics, self._last, self._kills = chance, metrics, last, kills
        self._after = first - 1 + chance.randrange(max(min(3, last - first - 1), 1))
        """The step after which the next one is killed."""
        self._first = first
        self._when: float | None = None

    def __call__(self, process: subprocess.Popen[bytes]) -> bool:
        records = read_metrics(self._metrics)
        done = records[-1]["step"] if records else self._first - 1
        if self._when is None and done >= self._after:
            self._when = time.monotonic() + self._chance.uniform(0, STEP_S if records else START_S)
        if len(self.killed) < self._kills and self._when is not None and time.monotonic() > self._when:
            try:
                below = psutil.Process(process.pid).children(recursive=True)
                victim = self._chance.choice([process.pid, *(child.pid for child in below)])
                name = " ".join(psutil.Process(victim).cmdline())[:60]
                os.kill(victim, 9)
            except (psutil.Error, ProcessLookupError):
                return False
            self.killed.append(name)
            self._after, self._when = done + 1 if done + 3 < self._last else self._last, None
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
        saved = newest_whole(tmp_path / "parts" / "checkpoints")
        first = 1 + (int(saved.name.rpartition("_")[2]) if saved else 0)
        metrics = tmp_path / "parts" / f"metrics_{len(runs)}.jsonl"
        killer = Killer(chance, metrics, first, steps, kills - len(killed))
        runs.append(train("himac_bytes", settings("parts"), "parts", killer))
        killed += killer.killed
        assert not processes_of_runs(), f"left after the end of {killer.killed}"
        assert len(runs) <= 2 * kills + 2, (killed, runs[-1].log[-3000:])
    assert len(killed) == kills, killed
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
