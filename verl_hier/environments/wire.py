"""Messages between the pool and its processes: a length and a pickle. Both ends are the same installation."""

from __future__ import annotations

import pickle
import struct
from typing import Any

HEADER = struct.Struct("!Q")


def pack(message: Any) -> bytes:
    """One message as bytes."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message of a body that follows a header."""
    return pickle.loads(body)
