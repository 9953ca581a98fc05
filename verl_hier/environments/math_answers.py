"""Whether two answers in LaTeX are the same, by the package `math-verify`, which reads them by sympy.

An answer such as `9^{9^{9^9}}` keeps sympy busy for ever, so a process of its own reads them, with limits of time and
memory; an answer that reaches one is wrong.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

from verl_hier.errors import RecipeError

LONGEST = 2000
"""Characters at the end of an answer that are read."""
LIMIT_S, START_S = 5.0, 60.0
"""Seconds for one answer, and for the first one, for which sympy is imported."""
MOST_BYTES = 4 * 2**30
"""Address space of the process that reads."""

_lock = threading.Lock()
_readers: dict[int, subprocess.Popen[bytes]] = {}


def require_math_verify(line: str) -> None:
    """Refuse a recipe where `math-verify` is not installed.

    Args:
        line: the recipe line that asks for it.

    Raises:
        RecipeError: naming the line and how to install it.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise RecipeError(f"{line}: math_verify needs the package math-verify; pip install 'verl-hier[math]'.")


def math_verify(answer: str, truths: Iterable[str]) -> bool:
    """Whether an answer is mathematically equal to one of the true ones, as far as `math-verify` can say.

    Args:
        answer: words around the result do not matter where it stands in `\\boxed{}` or between dollar signs.
        truths: in LaTeX, with or without dollar signs, or as plain expressions.

    Raises:
        RecipeError: when `math-verify` is not installed.
    """
    require_math_verify("hier.environment.scorer")
    asked = json.dumps([answer[-LONGEST:], [truth[-LONGEST:] for truth in truths]]).encode() + b"\n"
    with _lock:
        # A fork of this process must not share the pipes of its parent's reader.
        known = _readers.get(os.getpid())
        reader, limit_s = (_begin(), START_S) if known is None or known.poll() is not None else (known, LIMIT_S)
        said = _ask(reader, asked, limit_s)
        if said is None:
            reader.kill()
            reader.wait()
            _readers.pop(os.getpid(), None)
    return said == b"1"


def _begin() -> subprocess.Popen[bytes]:
    reader = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    _readers[os.getpid()] = reader
    return reader


def _ask(reader: subprocess.Popen[bytes], asked: bytes, limit_s: float) -> bytes | None:
    """What the reader says: `1` or `0`, None where it says nothing in time."""
    assert reader.stdin is not None and reader.stdout is not None
    try:
        reader.stdin.write(asked)
        reader.stdin.flush()
    except OSError:
        return None
    ready, _, _ = select.select([reader.stdout], [], [], limit_s)
    return reader.stdout.readline().strip() or None if ready else None


def _equal(answer: str, truths: Iterable[str]) -> bool:
    from math_verify import parse, verify

    def read(text: str) -> list[Any]:
        anchored = "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text
        found: list[Any] = parse(text if anchored else f"${text}$") or parse(text)
        return found

    given = read(answer)
    return bool(given) and any(verify(read(truth), given) for truth in truths)


def _main() -> None:
    """Answer one line after the other, until there is none."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            equal = _equal(*json.loads(line))
        except Exception:
            equal = False
        said.write("1\n" if equal else "0\n")
        said.flush()


if __name__ == "__main__":
    _main()
