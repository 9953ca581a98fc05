"""A tokenizer with a chat template, made once."""

from __future__ import annotations

import pytest

from verl_hier.testing.models import write_byte_model


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory):
    return write_byte_model(tmp_path_factory.mktemp("byte_model"))
