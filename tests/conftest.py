"""Fixtures of all tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.byte_model import write_byte_model
from verl_hier.recipe.compose import files_read_once


@pytest.fixture
def run() -> Callable[..., Any]:
    """Runs a coroutine to its end."""
    return asyncio.run


@pytest.fixture(autouse=True, scope="session")
def recipes_read_once() -> Iterator[None]:
    """Many recipes are composed from the same files."""
    with files_read_once():
        yield


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a byte-level tokenizer and a chat template."""
    return write_byte_model(tmp_path_factory.mktemp("byte_model"))
