"""Fixtures of all tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.byte_model import write_byte_model


@pytest.fixture
def run() -> Callable[..., Any]:
    """Runs a coroutine to its end."""
    return asyncio.run


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a byte-level tokenizer and a chat template."""
    return write_byte_model(tmp_path_factory.mktemp("byte_model"))
