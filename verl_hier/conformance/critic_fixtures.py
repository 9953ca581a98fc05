"""Adapters of fixtures."""

from collections.abc import Callable
from typing import Any

ADAPTERS: dict[str, Callable[..., Any]] = {}
