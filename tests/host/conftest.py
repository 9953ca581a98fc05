"""Fixtures of the host tests: temporary distributions on `sys.path`, and no host left over from another test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from temporary_distributions import Install, write_distribution

from verl_hier.host import manager as plugins


@pytest.fixture(autouse=True)
def fresh_host() -> Iterator[None]:
    """Hosts are cached for a process; a test must not see another one's."""
    plugins._HOSTS.clear()
    yield
    plugins._HOSTS.clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install("dist-name", {"entry": "module"}, {"module.py": source}, version="1.0", requires=[…])`."""
    before = set(sys.modules)

    def make(
        name: str,
        points: Mapping[str, str],
        files: Mapping[str, str],
        version: str = "1.0",
        requires: tuple[str, ...] = (),
    ) -> Path:
        root = write_distribution(tmp_path / name, name, points, files, version, requires)
        monkeypatch.syspath_prepend(str(root))
        importlib.invalidate_caches()
        return root

    yield make
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]
