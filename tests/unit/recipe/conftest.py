"""Many recipes are composed here from the same files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verl_hier.recipe.compose import files_read_once


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """No test changes a file that it has composed."""
    with files_read_once():
        yield
