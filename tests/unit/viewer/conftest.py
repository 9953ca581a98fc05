"""A stored run of each estimator that explains itself, and the book of one."""

from __future__ import annotations

import pytest

from tests.fixtures.viewed_run import METHODS, write_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folder of a run by the name of its estimator."""
    folder = tmp_path_factory.mktemp("runs")
    return {method: write_run(folder / method, method) for method in METHODS}
