"""Named random generators: every draw of a rollout can be traced to a root seed and the names on the way to it."""

from __future__ import annotations

import hashlib
import random


def derive(root: int, *names: object) -> int:
    """A 31-bit seed from a root and names; stable over processes and Python versions."""
    text = "/".join([str(root), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") & 0x7FFFFFFF


def generator(root: int, *names: object) -> random.Random:
    """A generator of its own for `names`."""
    return random.Random(derive(root, *names))
