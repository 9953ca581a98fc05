"""Why a method does not learn in a world where it was tried: by design, not by a fault."""

from __future__ import annotations


def reason(method: str, world: str) -> str | None:
    """The reason, or None where none is known."""
    return _REASONS.get((method, world)) or _REASONS.get((method, ""))


_REASONS: dict[tuple[str, str], str] = {}
