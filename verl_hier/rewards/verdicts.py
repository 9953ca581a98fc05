"""The verdict in the answer of a judge: a line of its own, `Score: 7`, or a JSON object with `score`.

What the judge quotes or thinks is no verdict: the number has to stand on a line that begins with the word.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from verl_hier.environments.numbers import number_of
from verl_hier.environments.thoughts import json_object_end, without_thoughts
from verl_hier.text import read_json

LONGEST = 20_000
"""Characters at the end of an answer that are read."""
_NUMBER = r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|[.,]\d+)(?:[eE][-+]?\d+)?"
_RANGE = r"{0}\s?(?:-|–|—|to)\s?{0}"
_SCALE = (
    r"(?:\s*[(\[][^()\[\]\n]{0,60}[)\]]|\s+(?:on|from|out\s+of)\b[^:=\n]{0,60}(?=[:=]))?"
    r"(?:\s*[:=]\s*" + _RANGE.format(r"[-+−]?\d+(?:[.,]\d+)?") + r"(?=\s*[:=]))?"
)
_LINE = re.compile(
    r"[ \t]*(?:[-•]\s)?[*_#`\s]*(?:(?:my|the|final|overall|total)\s+){0,3}score\b[*_`]*"
    + _SCALE
    + r"[*_`]*\s*(?:[:=—]|\bis\b|\s)[*_`\s]*"
    + rf"(?P<number>{_NUMBER})(?!\s?[-–—]\s?\d|[\w])[*_`]*"
    + rf"(?:\s*(?:/|out\s+of|of)\s*(?P<of>{_NUMBER})(?!\w))?[*_`]*"
    + r"(?:\s*(?:points?|stars?))?\s*(?:$|[.,;)(—–-](?:\s|$).*|[(].*|\b(?:because|since)\b.*)",
    re.IGNORECASE,
)


def verdict(text: str, low: float, high: float) -> float | None:
    """The last verdict in an answer, None where there is none; linear in the length of the text.

    A line is a verdict where it begins with `Score` (after `final`, or in bold) and gives one number; behind it may
    stand `/10`, the upper end of the scale, and a sentence. A range such as `7-8`, or a number on another scale, is
    none.

    Args:
        text: what the judge says, thoughts included, which are left out.
        low, high: ends of the scale.
    """
    said = without_thoughts(text)[-LONGEST:]
    found, place = None, 0
    while place < len(said):
        line_end = said.find("\n", place)
        line_end = len(said) if line_end < 0 else line_end
        line = said[place:line_end]
        end = json_object_end(said, place) if line.lstrip().startswith("{") else None
        number = _of_line(line, low, high) if end is None else _of_object(said[place:end])
        found = found if number is None else number
        place = max(end or 0, line_end) + 1
    return found


def _of_line(line: str, low: float, high: float) -> float | None:
    match = _LINE.fullmatch(line[:1000].rstrip())
    number = None if match is None else number_of(match["number"])
    if match is None or number is None:
        return None
    if match["of"] is not None:
        whole = number_of(match["of"])
        if not whole or (whole not in (Fraction(str(high)), Fraction(str(high)) - Fraction(str(low))) and high != 1):
            return None
        number = number / whole if high == 1 and whole != 1 else number
    return _float(number)


def _of_object(text: str) -> float | None:
    try:
        said: Any = read_json(text)
    except ValueError:
        return None
    value = next((said[name] for name in said if name.lower() == "score"), None)
    if isinstance(value, str):
        number = number_of(value)
        return None if number is None else _float(number)
    return _float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _float(number: Fraction | float) -> float | None:
    """The number as a float, None beyond their range."""
    try:
        return float(number)
    except OverflowError:
        return None
