"""Fixtures of all tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_hier.testing.models import write_byte_model

EXAMPLES = Path(__file__).parents[1] / "examples" / "plugins"


@pytest.fixture
def run() -> Callable[..., Any]:
    """Runs a coroutine to its end."""
    return asyncio.run


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a byte-level tokenizer and a chat template."""
    return write_byte_model(tmp_path_factory.mktemp("byte_model"))


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example packages."""
    target = tmp_path_factory.mktemp("examples")
    packages = [str(folder) for folder in sorted(EXAMPLES.iterdir()) if (folder / "pyproject.toml").exists()]
    assert len(packages) == 6
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        *packages,
    ]
    subprocess.run(command, check=True)
    return target
