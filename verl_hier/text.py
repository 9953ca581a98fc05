"""Text and JSON that somebody else has written: a policy, a server, an agent program, an environment.

A Python text can hold one half of a surrogate pair, which JSON and Python can escape (`"\\ud83d"`) and which is no
character: no tokenizer reads it and no file in UTF-8 holds it. Where text enters, halves are replaced by `?`, as Python
itself replaces them when it encodes. Every other character stays as it is, control and bidirectional ones included;
what shows a text escapes them.
"""

from __future__ import annotations

import json
import math
from typing import Any

DEEPEST = 100
"""Levels of lists and objects that are read in JSON of strangers; what serialises it again has limits of its own."""


def without_halves(text: str) -> str:
    """The text with each half of a surrogate pair replaced by `?`; the same object where there is none."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def repaired(value: Any) -> Any:
    """The value with all texts in its mappings, lists and tuples `without_halves`, keys included.

    Where there is none, it is the same object.

    Raises:
        ValueError: when it is nested more than `DEEPEST` levels, which only a cycle or a stranger's JSON is.
    """
    if isinstance(value, str):
        return without_halves(value)
    return _replaced(value) if _has_halves(value) else value


def visible(text: str) -> str:
    """The text with the code of each character that is not seen but for spaces and line ends: `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode() for sign in text
    )


def without_middle(text: str, most: int) -> str:
    """The text, of which its middle is left out where it has more than about `most` characters."""
    half = most // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def read_json(text: str | bytes) -> Any:
    """The value of a stranger's JSON, `repaired`.

    Raises:
        ValueError: as `parsed_json`, and for more than `DEEPEST` levels.
    """
    return repaired(parsed_json(text))


def parsed_json(text: str | bytes) -> Any:
    """The value of a stranger's JSON, which still has to be `repaired`.

    Raises:
        ValueError: for what is no JSON as RFC 8259 has it, which knows neither NaN nor infinities, for a number beyond
            the range of floats, for bytes that are not UTF-8, and for more levels than Python can nest.
    """
    try:
        return _DECODER.decode(str(text, "utf-8") if isinstance(text, bytes) else text)
    except RecursionError as error:
        raise ValueError(f"nested more than {DEEPEST} levels") from error


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits:.20} is beyond the range of floats")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _has_halves(value: Any) -> bool:
    """Whether a text in it has halves; level by level, because recursion has an end."""
    found = False
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, str):
                found = found or without_halves(item) is not item
            elif isinstance(item, dict):
                deeper += item
                deeper += item.values()
            elif isinstance(item, list | tuple):
                deeper += item
        if not deeper:
            return found
        level = deeper
    raise ValueError(f"nested more than {DEEPEST} levels")


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return without_halves(value)
    if isinstance(value, dict):
        return {_replaced(name): _replaced(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_replaced(each) for each in value)
    return value
