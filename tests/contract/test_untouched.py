"""verl's files are what pip installed, whatever has run before."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import distribution


def test_installed_verl_is_unmodified():
    changed = []
    for file in distribution("verl").files or []:
        if file.hash is None:
            continue
        digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    assert not changed
