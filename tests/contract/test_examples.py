"""The example packages, installed by pip beside us, pass their own tests. Runs of the trainer use them in tests/e2e."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


def test_their_own_tests_pass(examples):
    folders = [str(folder / "tests") for folder in sorted(EXAMPLES.iterdir()) if (folder / "tests").is_dir()]
    path = os.pathsep.join([str(examples), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=examples)
    assert done.returncode == 0, done.stdout[-2000:]
