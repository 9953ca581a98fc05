"""Runs of the real trainer: verl's own entry point in a process of its own, on models made on the spot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.distributions import write_distribution
from tests.fixtures.probe import ENTRY, PLUGIN, RECIPES, TRAINERS
from tests.fixtures.toy_task import toy as toy
from verl_hier.testing.models import write_byte_model, write_toy_task

LIMIT_S = 420
"""A run that takes longer hangs; on two cores each takes about a minute."""


@dataclass
class Run:
    """A finished run of the trainer."""

    code: int
    log: str
    steps: list[dict[str, Any]]

    def metric(self, name: str) -> list[float]:
        """A metric over the steps."""
        return [step[name] for step in self.steps if name in step]


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of 60k parameters with a byte-level tokenizer and a chat template, and a toy task beside it."""
    folder = write_byte_model(tmp_path_factory.mktemp("byte_model"))
    write_toy_task(folder)
    return folder


@pytest.fixture(scope="session")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed third-party distribution; put it on PYTHONPATH."""
    root = write_distribution(
        tmp_path_factory.mktemp("site"),
        "hier-probe",
        {"probe": "probe_world"},
        {"probe_world.py": PLUGIN, "probe_trainers.py": TRAINERS, "probe_entry.py": ENTRY, **RECIPES},
    )
    (points,) = root.glob("*.dist-info/entry_points.txt")
    points.write_text(points.read_text() + "[verl.plugins]\nprobe = probe_entry\n")
    return root


Train = Callable[..., Run]


@pytest.fixture
def environment(probes: Path, tmp_path: Path) -> dict[str, str]:
    """Environment variables of a run in `tmp_path`."""
    (tmp_path / "probe").mkdir()
    path = os.pathsep.join([str(probes), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PROBE_FOLDER": str(tmp_path / "probe")}


def command(recipe: str, model: Path, recipes: Path, overrides: list[str]) -> list[str]:
    """verl's own entry point with a recipe, shipped or of the folder `recipes`."""
    main = [sys.executable, "-m", "verl.trainer.main_ppo", f"--config-dir={recipes}", "--config-name", recipe]
    return [*main, f"actor_rollout_ref.model.path={model}", *overrides]


@pytest.fixture
def train(byte_model: Path, probes: Path, environment: dict[str, str], tmp_path: Path) -> Train:
    """`train(recipe, overrides, name)` runs to the end; the files of the run stay in `tmp_path / name`.

    With `kill_after` the process is killed as soon as so many steps have been logged.
    """

    def run(
        recipe: str, overrides: list[str], name: str = "run", kill_after: int | None = None, **variables: str
    ) -> Run:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        number = len(list(folder.glob("metrics_*")))
        metrics, output = folder / f"metrics_{number}.jsonl", folder / f"output_{number}.txt"
        with output.open("w") as stream:
            process = subprocess.Popen(
                command(recipe, byte_model, probes, [f"trainer.default_local_dir={folder}/checkpoints", *overrides]),
                cwd=folder,
                env={**environment, "VERL_FILE_LOGGER_PATH": str(metrics), **variables},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
            deadline = time.monotonic() + LIMIT_S
            while process.poll() is None:
                if time.monotonic() > deadline or (kill_after and len(lines_of(metrics)) >= kill_after):
                    process.kill()
                time.sleep(0.1)
        assert time.monotonic() < deadline, output.read_text()[-3000:]
        steps = [record["data"] | {"step": record["step"]} for record in map(json.loads, lines_of(metrics))]
        return Run(process.returncode, output.read_text(), steps)

    return run


def lines_of(file: Path) -> list[str]:
    """The finished lines of a file that may still be written to, or not be there yet."""
    return file.read_text().split("\n")[:-1] if file.exists() else []
