"""Fixtures of the runs of the real trainer: models made on the spot, probes, and the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.byte_model import write_byte_model, write_toy_task
from tests.fixtures.distributions import write_distribution
from tests.fixtures.example_packages import install_examples
from tests.fixtures.probe import ENTRY, PLUGIN, RECIPES, TRAINERS
from tests.fixtures.trainer import Trainer


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


@pytest.fixture
def train(byte_model: Path, probes: Path, tmp_path: Path) -> Trainer:
    """`train(recipe, overrides, name)` runs the trainer to its end in `tmp_path / name`."""
    return Trainer(tmp_path, byte_model, probes)


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example estimators."""
    return install_examples(tmp_path_factory.mktemp("examples"), "baseline_gap", "role_median")
