"""Numbers in texts, read exactly: `-1,234.5`, `.5`, `3/4`, `1 1/2`, `2e-3`, `2 × 10^5`, `\\frac{1}{2}`, `½`.

A number is a `Fraction`, so that it is equal to itself in every notation and to no other by rounding. U+2212, its
wide forms and the dashes that stand for it are minus signs too; behind a digit, a letter or a bracket, as in `10-3`, a
minus is no sign. Commas group thousands where each group has three digits; a single comma before another number of
digits is a decimal comma (`0,5`).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MOST_DIGITS = 1000
"""Longer numbers, and those with a larger exponent, are not read, because they would cost more than they say."""
LONGEST = 4000
"""Characters at the end of a text in which `last_number` looks."""

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "‒": "-", "‑": "-", "‐": "-", "﹣": "-", "－": "-", "＋": "+", "⁄": "/", "∕": "/"}
)
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_GROUPING = re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f_]|\{,\}|\\,|\\ )(?=\d{3}(?!\d))")
_DECIMAL = (
    r"(?:(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?(?!\d|,\d)"  # 1,234.5
    r"|[1-9]\d{0,2}(?:\.\d{3})+,\d+(?!\d|[.,]\d)"  # 1.234,5
    r"|[1-9]\d{0,2}(?:\.\d{3}){2,}(?!\d|[.,]\d)"  # 1.234.567
    r"|(?<!\d,)\d+,\d+(?!\d|[.,]\d)"  # 0,5
    r"|(?<!\d\.)\d+(?:\.\d+)?|(?<![\w.])\.\d+)"
)
_EXPONENT = (
    r"(?:[eE](?P<e>[-+]?\d+)(?![\w])"
    r"|\s?(?:×|\\times|\\cdot|[x*·])\s?10\s?(?:\^|\*\*)\s?(?:(?P<p>[-+]?\d+)|\{\s?(?P<q>[-+]?\d+)\s?\}))"
)
_BRACED = r"\{\s?(?P<%s>[-+]?" + _DECIMAL + r")\s?\}|(?P<%s>\d)"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}+-])[-+])?(?:\\?[$€£])?(?P<inner>(?<=[$€£])[-+])?"
    r"(?:\\[dt]?frac\s?(?:" + _BRACED % ("a", "b") + r")\s?(?:" + _BRACED % ("c", "d") + r")"
    r"|(?<!\w)(?:(?<!\d/)(?:(?P<whole>\d+)\s{1,2})?(?P<upper>" + _DECIMAL + r")\s?/\s?(?P<lower>-?" + _DECIMAL + r")"
    r"(?!/\d)|(?P<plain>" + _DECIMAL + r")" + _EXPONENT + r"?))"
)


def last_number(text: str) -> Fraction | None:
    """The last number in a text, None where there is none or it is too long to be read."""
    found = list(_NUMBER.finditer(_plainly(text[-LONGEST:])))
    return _value(found[-1]) if found else None


def number_of(text: str, written_out: bool = True) -> Fraction | None:
    """The number that a whole text is, None where it is something else, or more.

    Args:
        text: spaces around it, a full stop behind it and dollar signs around it (LaTeX) do not count.
        written_out: whether fractions and powers of ten count too, which say how a number is computed.
    """
    text = _plainly(text).strip().removesuffix(".").strip()
    if text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()
    text = re.sub(r"^([-+]) (?=[\d.$])", r"\1", re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", text))
    found = _NUMBER.fullmatch(text)
    if found is None or not (written_out or (found["plain"] and not (found["p"] or found["q"]))):
        return None
    return _value(found)


def _plainly(text: str) -> str:
    """The text with ASCII signs, `½` as `1/2`, and no separators between groups of three digits but commas and dots."""
    text = _VULGAR.sub(lambda one: " " + unicodedata.normalize("NFKC", one[0]), text.translate(_SIGNS))
    return _GROUPING.sub("", text.translate(_SIGNS))


def _value(found: re.Match[str]) -> Fraction | None:
    if len(found[0]) > MOST_DIGITS:
        return None
    upper = found["a"] or found["b"] or found["upper"]
    if upper:
        lower = _decimal(found["c"] or found["d"] or found["lower"])
        if not lower:
            return None
        value = _decimal(upper) / lower
        if found["whole"] and not 0 < value < 1:
            return value  # `5 7/2` are two numbers, of which this is the last
        value += int(found["whole"] or 0)
    else:
        exponent = int(found["e"] or found["p"] or found["q"] or 0)
        if abs(exponent) > MOST_DIGITS:
            return None
        value = _decimal(found["plain"]) * Fraction(10) ** exponent
    return -value if (found["sign"] == "-") != (found["inner"] == "-") else value


def _decimal(text: str) -> Fraction:
    """The value of digits with a decimal point or comma, and separators of thousands."""
    if "," in text and "." in text:
        mark = max(text.rfind(","), text.rfind("."))
        text = re.sub("[.,]", "", text[:mark]) + "." + text[mark + 1 :]
    elif "," in text:
        grouped = re.fullmatch(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+", text)
        text = text.replace(",", "" if grouped else ".")
    elif text.count(".") > 1:
        text = text.replace(".", "")
    return Fraction(text)
