"""What the tests of engines share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import process_group


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights."""
    return write_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as a process group of one, as engines need it."""
    with process_group(tmp_path_factory.mktemp("group") / "store"):
        yield
