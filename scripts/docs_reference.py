"""Option tables and the reference of recipe lines, read from the dataclasses."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from docs_markdown import cell, table

from verl_hier.host.describe import options_of


def options(cls: type) -> Iterator[str]:
    """The option table of a dataclass, followed by those of the dataclasses that its fields hold."""
    rows = [(f"`{o.name}`", f"`{cell(o.type)}`", f"`{cell(o.default)}`", cell(o.text)) for o in options_of(cls)]
    if not rows:
        yield "It has no options."
        return
    yield from table(("option", "type", "default", ""), *rows)
    for field, hint in typing.get_type_hints(cls).items():
        for inner in typing.get_args(hint):
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                yield from ("", f"Each entry of `{field}`:", "")
                yield from options(inner)


def fields(path: str, cls: type) -> Iterator[str]:
    """Every line that a recipe may have below `path`: a table for a dataclass, and one for each that it holds."""
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {field.name: field for field in dataclasses.fields(cls)}
    rows = []
    for option in options_of(cls):
        hint = hints[option.name]
        if not dataclasses.is_dataclass(hint):
            text = cell(option.text)
            rows.append((f"`{path}.{option.name}`", kind_of(hint), default_of(values[option.name]), text))
    yield from table(("line", "type", "default", "what it does"), *rows)
    for name, hint in hints.items():
        held, place = hint, f"{path}.{name}"
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            held = next(filter(dataclasses.is_dataclass, typing.get_args(hint)), hint)
        if typing.get_origin(hint) is Mapping:
            held, place = typing.get_args(hint)[1], f"{place}.NAME"
        if dataclasses.is_dataclass(held) and isinstance(held, type):
            yield from ("", f"### `{place}`", "", " ".join((held.__doc__ or "").split()), "")
            yield from fields(place, held)


def kind_of(hint: typing.Any) -> str:
    """An annotation in the words of a recipe's author, with what it allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return " ".join((kind_of(arguments[0]), *(cell(str(constraint)) for constraint in hint.__metadata__)))
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(kind_of, arguments))
    if origin is tuple:
        return f"list of {kind_of(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        held = "a block" if dataclasses.is_dataclass(arguments[1]) else kind_of(arguments[1])
        return f"mapping of {kind_of(arguments[0])} to {held}"
    if dataclasses.is_dataclass(hint):
        return "a block"
    words = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", type(None): "`null`"}
    return words.get(hint, "anything")


def default_of(field: dataclasses.Field[typing.Any]) -> str:
    """A default as YAML writes it; a field without one has to be given."""
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    return "required"


PUBLIC = (
    ("verl_hier", "From notebooks and scripts; see [the page](python.md)."),
    ("verl_hier.hookspecs", "What a plugin implements; see [the page](plugins.md)."),
    ("verl_hier.host.specs", "What a plugin returns from its hooks."),
    ("verl_hier.host.training_specs", "The rest of it, which is imported from `verl_hier.host.specs` too."),
    ("verl_hier.environments.base", "What an environment is."),
    ("verl_hier.rollout", "What workers and samplers play with."),
    ("verl_hier.graph", "Rollouts as graphs, rows and turn tables."),
    ("verl_hier.credit", "Kernels that estimators are made of."),
    ("verl_hier.testing", "Kits that test a part without a model."),
)
"""The modules whose names are public, with a sentence each."""


def api() -> Iterator[str]:
    """Every public name of the public modules with its signature and the first sentence of its docstring."""
    for name, sentence in PUBLIC:
        module = importlib.import_module(name)
        yield from (f"## `{name}`", "", sentence, "")
        rows = [(f"`{each}{_signature(value)}`", cell(_sentence(value))) for each, value in _members(module)]
        yield from (*table(("name", "what it is"), *rows), "")


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Its public classes and functions, those of `__all__` where it has one."""
    given = getattr(module, "__all__", None)
    for name in given or [name for name in vars(module) if not name.startswith("_")]:
        value = getattr(module, name)
        at_home = given is not None or getattr(value, "__module__", None) == module.__name__
        if at_home and (inspect.isclass(value) or inspect.isfunction(value)):
            if module.__name__ == "verl_hier.hookspecs" and inspect.isclass(value):
                yield from ((each, hook) for each, hook in vars(value).items() if each.startswith("hier_"))
            else:
                yield name, value


def _signature(value: Any) -> str:
    """Names of the parameters; of a class, those of its constructor."""
    try:
        names = [name for name in inspect.signature(value).parameters if name not in ("self", "args", "kwargs")]
    except (TypeError, ValueError):
        return ""
    return f"({', '.join(names)})"


def _sentence(value: Any) -> str:
    text = " ".join((inspect.getdoc(value) or "").split())
    return re.split(r"(?<=[.!?])\s", text)[0]
