"""A part that a recipe names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """One part of a recipe: its spec and its options, checked and built."""

    spec: Any
    options: Any
