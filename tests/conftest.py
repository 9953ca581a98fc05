"""How the suite is divided when it runs on several workers (`-n 2 --dist loadgroup`, as scripts/test does)."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs of the real trainer go to one worker, one after the other: two at once want more memory than is there."""
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.xdist_group("e2e"))
