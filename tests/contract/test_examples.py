"""The example packages, installed by pip beside us, pass their own tests. Runs of the trainer use them in tests/e2e."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.example_packages import EXAMPLES, install_examples


@pytest.mark.slow
def test_their_own_tests_pass(tmp_path: Path) -> None:
    names = [folder.name for folder in sorted(EXAMPLES.iterdir()) if (folder / "pyproject.toml").exists()]
    assert len(names) == 7
    site = install_examples(tmp_path / "site", *names)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    folders = [str(EXAMPLES / name / "tests") for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=site)
    assert done.returncode == 0, done.stdout[-2000:]
