"""Asking a symbol of another package whether it still is what we were written against. Reads, never calls."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from pathlib import Path
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


def spells(target: str, *fragments: str, names: tuple[str, ...] = ()) -> Check:
    """As `reads` and `takes`, from the file alone: for modules that import what need not be installed (vLLM, SGLang).

    Args:
        target: `module:Class.function`.
        fragments: what its source says, whatever the line breaks.
        names: parameters that the function takes.
    """

    def check() -> None:
        text, node = _written(target)
        source = _squeezed(ast.get_source_segment(text, node) or "")
        for fragment in fragments:
            if _squeezed(fragment) not in source:
                raise SeamBroken(f"{target} does not say `{fragment}` any more")
        if names:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                raise SeamBroken(f"{target} is no function any more")
            arguments = node.args
            there = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            missing = [name for name in names if name not in there]
            if missing and arguments.kwarg is None:
                raise SeamBroken(f"{target} takes no {', '.join(missing)}")

    return check


def _written(target: str) -> tuple[str, ast.stmt]:
    """Text of the file of `module:Class.function`, and the statement that defines it; imports the top package only."""
    module, _, path = target.partition(":")
    package, *rest = module.split(".")
    spec = importlib.util.find_spec(package)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [file for root in roots if (file := root.joinpath(*rest).with_suffix(".py")).is_file()]
    if not files:
        raise SeamBroken(f"{module} does not exist any more")
    text = files[0].read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    found: ast.stmt | None = None
    for name in path.split("."):
        found = next((node for node in body if getattr(node, "name", None) == name), None)
        if found is None:
            raise SeamBroken(f"{target} does not exist any more")
        body = getattr(found, "body", [])
    assert found is not None
    return text, found


def together(*checks: Check) -> Check:
    """All of them."""

    def check() -> None:
        for one in checks:
            one()

    return check


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
