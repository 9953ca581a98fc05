"""From a block of a recipe to the options dataclass of a part, value by value; what does not fit is a sentence."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.constraints import Range, Template
from verl_hier.host.specs import Spec


def build_options(spec: Spec, block: Mapping[str, Any], where: str | None = None) -> Any:
    """The spec's options dataclass from a recipe block.

    Args:
        spec: the registered part.
        block: plain mapping of option names to values; a `name` key is ignored.
        where: the recipe line to name in errors; `hier.<kind>` when omitted.

    Raises:
        RecipeError: for an unknown option, a wrong type, a missing required one, or what the dataclass itself refuses.
    """
    where = where or f"hier.{spec.kind}"
    return build_dataclass(spec.options, {k: v for k, v in block.items() if k != "name"}, where, repr(spec.name))


def build_dataclass(cls: type, values: Mapping[str, Any], where: str, owner: str) -> Any:
    """`cls(**values)` with every value checked against the field's annotation; see `build_options`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise RecipeError(
                f"{where}.{key}: {owner} has no option {key!r}{did_you_mean(key, fields)}. Its options: {known}."
            )
        checked[key] = _fit(value, hints[key], f"{where}.{key}")
    missing = [
        f.name
        for f in fields.values()
        if f.name not in checked and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise RecipeError(f"{where}: {owner} needs {', '.join(missing)}; add `{where}.{missing[0]}: …`.")
    try:
        return cls(**checked)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{where}: {owner} refuses these options: {error}") from error


def _fit(value: Any, hint: Any, where: str) -> Any:
    """`value` as the annotated type, or a sentence. Ints pass as floats, lists as tuples, mappings as dataclasses."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return _constrained(_fit(value, args[0], where), args[1:], where)
    if origin in (typing.Union, types.UnionType):
        return _fit_union(value, args, where)
    if origin is Literal:
        if value not in args:
            raise RecipeError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}.")
        return value
    if origin in (list, tuple) and isinstance(value, list | tuple):
        inner = args[0] if args else Any
        return origin(_fit(item, inner, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None and isinstance(value, Mapping) and issubclass(origin, Mapping):
        inner = args[1] if len(args) == 2 else Any
        return {k: _fit(v, inner, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build_dataclass(typing.cast(type, hint), value, where, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise RecipeError(f"{where}: expected a finite number, got one of {len(str(value))} digits.") from error
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{where}: expected a finite number, got {value}.")
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise RecipeError(f"{where}: expected {_expected(hint)}, got {value!r:.200} ({type(value).__name__}).")


def _expected(hint: Any) -> str:
    """What a recipe has to write for a value of this annotation, as far as a sentence can say it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        inner = args[1] if len(args) == 2 else Any
        needed = next((f.name for f in dataclasses.fields(inner)), "") if dataclasses.is_dataclass(inner) else ""
        return f"a block `{{name: {f'{{{needed}: …}}' if needed else '…'}}}`"
    if dataclasses.is_dataclass(hint):
        return "a block of options"
    if origin in (list, tuple):
        return "a list"
    return str(getattr(hint, "__name__", hint))


def _constrained(value: Any, constraints: tuple[Any, ...], where: str) -> Any:
    """`value`, when every constraint of its annotation holds."""
    for constraint in constraints:
        problem = constraint.problem(value) if isinstance(constraint, Range | Template) else None
        if problem:
            raise RecipeError(f"{where}: {problem}.")
    return value


def _fit_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in options:
        return None
    problems: list[str] = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _fit(value, option, where)
        except RecipeError as error:
            problems.append(str(error))
    raise RecipeError(problems[0] if len(problems) == 1 else f"{where}: {value!r} fits none of {options}.")
