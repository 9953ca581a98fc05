"""Limits of measured numbers."""

from __future__ import annotations


def exceeds(value: float, limit: float) -> bool:
    """Whether a measured number is above a limit. One that is nan is: nobody knows that it is not."""
    return not value <= limit
