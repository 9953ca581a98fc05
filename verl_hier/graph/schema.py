"""The JSON schema of stored rollout graphs, and the check that a graph fits it.

The check is compiled from the published schema, so the two cannot differ. It looks at the numbers of a long list in a
few passes without a step of the interpreter for each, which a general validator needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from verl_hier.errors import GraphError
from verl_hier.graph.records import SCHEMA_VERSION

Check = Callable[[Any], None]
_ADDED = {2: ("message", "node.messages"), 3: ("node.policy", "episode.reward_info", "graph.seconds")}
"""Schema version to the definitions and properties that it added to the one before."""
_NUMBERS: Mapping[str, set[type]] = {"integer": {int}, "number": {int, float}}
_OTHERS: Mapping[str, type] = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
_ARTICLES = {"integer": "an integer", "number": "a finite number", "string": "a text", "boolean": "true or false"}
_ARTICLES |= {"null": "null", "array": "a list", "object": "a mapping"}


class _Misfit(Exception):
    """A value does not fit.

    Attributes:
        place: keys and numbers that lead to it, the innermost first.
        problem: what is wrong there.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.place: list[str] = []
        self.problem = problem


def json_schema(version: int = SCHEMA_VERSION) -> dict[str, Any]:
    """The published JSON schema of one graph: the package ships the newest, older ones lack what was added since.

    Args:
        version: 1 to `SCHEMA_VERSION`.

    Raises:
        GraphError: when there is no such version.
    """
    if not 1 <= version <= SCHEMA_VERSION:
        raise GraphError(f"there is no schema version {version}; this verl-hier knows 1 to {SCHEMA_VERSION}.")
    text = resources.files("verl_hier.graph").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    schema["title"] = f"verl-hier rollout graph, version {version}"
    schema["properties"]["version"]["const"] = version
    for added in (name for later, names in _ADDED.items() if later > version for name in names):
        home, _, name = added.partition(".")
        if not name:
            del schema["$defs"][home]
            continue
        block = schema if home == "graph" else schema["$defs"][home]
        del block["properties"][name]
        block["required"].remove(name)
    return schema


def require_fit(data: Any) -> int:
    """Refuse what does not fit the schema of the version that it names; returns the version.

    Raises:
        GraphError: naming the first place that does not fit.
    """
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise GraphError("this is not a rollout graph: it has no integer `version`.")
    if version > SCHEMA_VERSION:
        raise GraphError(
            f"the graph has schema version {version}, this verl-hier reads up to {SCHEMA_VERSION}; upgrade it."
        )
    try:
        _check_of(version)(data)
    except _Misfit as misfit:
        place = "".join(reversed(misfit.place)).lstrip(".") or "it"
        raise GraphError(f"the graph does not fit schema version {version}: {place} {misfit.problem}.") from None
    return version


@cache
def _check_of(version: int) -> Check:
    schema = json_schema(version)
    return _compile(schema, schema["$defs"], {})


def _compile(schema: Mapping[str, Any], definitions: Mapping[str, Any], known: dict[str, Check]) -> Check:
    """The check of a schema; `known` holds those of the definitions that have been met."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in known:
            known[name] = _compile(definitions[name], definitions, known)
        return known[name]
    if "const" in schema or "enum" in schema:
        return _one_of(schema.get("enum", [schema.get("const")]))
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds == ["object"]:
        return _object(schema, definitions, known)
    if kinds == ["array"]:
        return _array(schema, definitions, known)
    checks = {kind: _single(kind, {**schema, "type": kind}, definitions, known) for kind in kinds}
    if len(checks) == 1:
        return next(iter(checks.values()))
    types = {each: check for kind, check in checks.items() for each in _NUMBERS.get(kind) or {_OTHERS[kind]}}
    wanted = " or ".join(_ARTICLES[kind] for kind in kinds)

    def check(value: Any) -> None:
        fitting = types.get(type(value))
        if fitting is None:
            raise _Misfit(f"is not {wanted}")
        fitting(value)

    return check


def _single(kind: str, schema: Mapping[str, Any], definitions: Mapping[str, Any], known: dict[str, Check]) -> Check:
    if kind in _NUMBERS:
        return _number(kind, schema)
    if kind in ("object", "array"):
        return _compile({**schema, "type": kind}, definitions, known)
    wanted, article = _OTHERS[kind], _ARTICLES[kind]

    def check(value: Any) -> None:
        if type(value) is not wanted:
            raise _Misfit(f"is not {article}")

    return check


def _one_of(allowed: list[Any]) -> Check:
    def check(value: Any) -> None:
        if not any(value == each and type(value) is type(each) for each in allowed):
            raise _Misfit(f"is not {' or '.join(map(str, allowed))}")

    return check


def _number(kind: str, schema: Mapping[str, Any]) -> Check:
    types, article = _NUMBERS[kind], _ARTICLES[kind]
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)

    def check(value: Any) -> None:
        if type(value) not in types or not math.isfinite(value):
            raise _Misfit(f"is not {article}")
        if value < least:
            raise _Misfit(f"is {value}, which is below {least}")
        if value > most:
            raise _Misfit(f"is {value}, which is above {most}")

    return check


def _array(schema: Mapping[str, Any], definitions: Mapping[str, Any], known: dict[str, Check]) -> Check:
    items = schema["items"]
    one = _compile(items, definitions, known)
    plain = definitions[items["$ref"].rpartition("/")[2]] if "$ref" in items else items
    types = _NUMBERS.get(plain["type"]) if isinstance(plain.get("type"), str) else None
    least, most = plain.get("minimum", -math.inf), plain.get("maximum", math.inf)
    shortest, longest = schema.get("minItems", 0), schema.get("maxItems", math.inf)

    def check(value: Any) -> None:
        if type(value) is not list:
            raise _Misfit("is not a list")
        if not shortest <= len(value) <= longest:
            raise _Misfit(f"has {len(value)} items")
        # A sum is finite if all of its numbers are; the converse does not hold, so the others are looked at singly.
        plainly = types and {*map(type, value)} <= types and math.isfinite(sum(value))
        if plainly and (not value or (least <= min(value) and max(value) <= most)):
            return
        for number, item in enumerate(value):
            try:
                one(item)
            except _Misfit as misfit:
                misfit.place.append(f"[{number}]")
                raise

    return check


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any], known: dict[str, Check]) -> Check:
    checks = {name: _compile(each, definitions, known) for name, each in schema.get("properties", {}).items()}
    required = schema.get("required", ())
    others = schema.get("additionalProperties", True)
    other = _compile(others, definitions, known) if isinstance(others, Mapping) else _finite if others else None

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _Misfit("is not a mapping")
        for name, item in value.items():
            fitting = checks.get(name, other)
            if fitting is None:
                raise _Misfit(f"has an unknown key {name!r:.60}")
            try:
                fitting(item)
            except _Misfit as misfit:
                misfit.place.append(f".{name:.60}")
                raise
        for name in required:
            if name not in value:
                raise _Misfit(f"lacks `{name}`")

    return check


def _finite(value: Any) -> None:
    """The check of a value that may be anything that JSON can hold: its numbers are finite."""
    level = [value]
    while level:
        inside = level.pop()
        if isinstance(inside, dict):
            level += inside.values()
        elif isinstance(inside, list):
            level += inside
        elif isinstance(inside, float) and not math.isfinite(inside):
            raise _Misfit("holds a number that is not finite")
