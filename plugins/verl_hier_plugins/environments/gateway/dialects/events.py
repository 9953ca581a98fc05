"""Server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

COMMENT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


def event(said: Mapping[str, Any], name: str = "") -> bytes:
    """One event, with a name where its dialect gives it one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(said).encode() + b"\n\n"
