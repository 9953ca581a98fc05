"""The example packages, installed by pip beside us, credit real runs of the real trainer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed all examples."""
    target = tmp_path_factory.mktemp("examples")
    packages = [str(folder) for folder in sorted(EXAMPLES.iterdir()) if (folder / "pyproject.toml").exists()]
    assert len(packages) == 6
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *packages]
    subprocess.run(command, check=True)
    return target


@pytest.mark.parametrize("name", ["baseline_gap", "role_median"])
def test_an_example_trains(train, environment, site, name):
    path = os.pathsep.join([str(site), environment["PYTHONPATH"]])
    overrides = [f"+hier.plugins.{name}=true", f"hier.estimator.name={name}", "trainer.total_training_steps=1"]
    run = train("grpo_bytes", overrides, PYTHONPATH=path)
    assert run.code == 0, run.log[-3000:]
    assert run.metric("hier/credit/zero_share")[0] < 1
    assert run.metric("actor/grad_norm")[0] > 0


def test_their_own_tests_pass(site):
    folders = [str(folder / "tests") for folder in sorted(EXAMPLES.iterdir()) if (folder / "tests").is_dir()]
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=site)
    assert done.returncode == 0, done.stdout[-2000:]
