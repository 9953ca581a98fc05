"""Values of overrides in Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def key_of(override: str) -> str:
    """The key of an override, without the signs that add or delete it."""
    return override.partition("=")[0].lstrip("+~")


def hydra_value(value: Any) -> str:
    """A value as the right side of an override: numbers and containers as they are, anything else as quoted text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {hydra_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(hydra_value, value)) + "]"
    # Hydra reads backslashes as themselves, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), str(value))
    return f"'{escaped}'"
