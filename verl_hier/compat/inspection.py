"""Asking a symbol of another package whether it still is what we were written against. Reads, never calls."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

Check = Callable[[], None]


class SeamBroken(Exception):
    """What is different, in one phrase."""


def load(target: str) -> Any:
    """The object at `module:attribute.attribute`; Ray actor classes are unwrapped to the plain class."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SeamBroken(f"{module} cannot be imported: {error}") from error
    for name in filter(None, path.split(".")):
        if not hasattr(found, name):
            raise SeamBroken(f"{target} does not exist any more")
        found = getattr(found, name)
        metadata = getattr(found, "__ray_metadata__", None)
        if metadata is not None:
            found = metadata.modified_class
    return found


def exists(*targets: str) -> Check:
    """Each target is there."""

    def check() -> None:
        for target in targets:
            load(target)

    return check


def takes(target: str, *names: str) -> Check:
    """The function takes these parameters by these names."""

    def check() -> None:
        parameters = inspect.signature(load(target)).parameters
        flexible = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        missing = [name for name in names if name not in parameters]
        if missing and not flexible:
            raise SeamBroken(f"{target} takes no {', '.join(missing)}; it takes {', '.join(parameters)}")

    return check


def reads(target: str, *fragments: str) -> Check:
    """The source of the target has these fragments, whatever the line breaks."""

    def check() -> None:
        try:
            source = _squeezed(inspect.getsource(load(target)))
        except (OSError, TypeError) as error:
            raise SeamBroken(f"the source of {target} cannot be read: {error}") from error
        for fragment in fragments:
            if _squeezed(fragment) not in source:
                raise SeamBroken(f"{target} does not say `{fragment}` any more")

    return check


def fields(target: str, *names: str) -> Check:
    """The dataclass or pydantic model has these fields."""

    def check() -> None:
        cls = load(target)
        there = set(getattr(cls, "model_fields", None) or ())
        there |= {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
        missing = [name for name in names if name not in there]
        if missing:
            raise SeamBroken(f"{target} has no field {', '.join(missing)}")

    return check


def abstract(target: str, *names: str) -> Check:
    """The class asks its subclasses for nothing but these methods."""

    def check() -> None:
        more = set(load(target).__abstractmethods__) - set(names)
        if more:
            raise SeamBroken(f"{target} has new abstract methods: {', '.join(sorted(more))}")

    return check


def together(*checks: Check) -> Check:
    """All of them."""

    def check() -> None:
        for one in checks:
            one()

    return check


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
