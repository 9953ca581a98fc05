"""What the tests of the sandbox share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verl_hier.local_sandbox import local
from verl_hier.local_sandbox.local import LocalSandbox


@pytest.fixture
def plain_interpreter(monkeypatch):
    """An interpreter that an ordinary user can read, for the layers without namespaces."""
    library = Path(os.__file__).parent
    if os.geteuid() == 0 and not all(part.stat().st_mode & 1 for part in library.parents):
        if not Path("/usr/bin/python3").exists():
            pytest.skip("root's own Python, and no other one")
        monkeypatch.setattr(local.sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(local, "_SANDBOX", LocalSandbox())
