"""The language of tests: `f(3, [1]) == 5`, with or without `assert`, one a line; only literals are allowed.

A test is parsed into a syntax tree, and the script that runs later is written from the values in it.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import Any

LONGEST_TEST = 600
LARGEST_NUMBER = 10**6
LONGEST_LIST = 60

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIGNS = {"minus": "-", "comma": ",", "open": "[", "close": "]", "true": "True", "false": "False"}
KINDS = {"n": "a whole number", "m": "a whole number", "xs": "a list of whole numbers", "s": "a text"}


class BadTest(ValueError):
    """A text is not a test; the message is meant for its author."""


@dataclass(frozen=True)
class Check:
    """One comparison: the arguments and the expected value, as Python literals."""

    arguments: str
    expected: str

    def __str__(self) -> str:
        return f"f({self.arguments}) == {self.expected}"


def read_test(text: str, arguments: str, most: int, words: bool = False) -> tuple[Check, ...]:
    """The checks of a test.

    Args:
        text: the submitted test.
        arguments: names of the function's arguments, which determine their kinds.
        most: maximum number of checks in a test.
        words: whether it is spelled in words, see `spell`.

    Raises:
        BadTest: with the reason.
    """
    if len(text) > LONGEST_TEST:
        raise BadTest(f"a test has at most {LONGEST_TEST} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            statements = ast.parse(_from_words(text) if words else text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTest("this is no Python") from error
    if not 1 <= len(statements) <= most:
        raise BadTest(f"a test has one to {most} checks")
    return tuple(_check(statement, arguments.split()) for statement in statements)


def _check(statement: ast.stmt, kinds: list[str]) -> Check:
    form = "a check has the form `f(…) == …` with plain values"
    compared = statement.test if isinstance(statement, ast.Assert) else getattr(statement, "value", None)
    if not isinstance(compared, ast.Compare) or not isinstance(statement, ast.Assert | ast.Expr):
        raise BadTest(form)
    if len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq | ast.Is):
        raise BadTest(form)
    call, expected = compared.left, compared.comparators[0]
    if not isinstance(call, ast.Call):
        call, expected = expected, call
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "f" or call.keywords:
        raise BadTest(form)
    if len(call.args) != len(kinds):
        raise BadTest(f"f takes {len(kinds)} argument{'s' * (len(kinds) > 1)}, not {len(call.args)}")
    try:
        values = [ast.literal_eval(node) for node in call.args]
        wanted = ast.literal_eval(expected)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise BadTest(form) from error
    for kind, value in zip(kinds, values, strict=True):
        if not _fits(kind, value):
            raise BadTest(f"{kind} is {KINDS[kind]} of a reasonable size")
    if not isinstance(wanted, int | str | list | tuple | type(None) | float):
        raise BadTest(form)
    return Check(", ".join(map(repr, values)), repr(wanted))


def _fits(kind: str, value: Any) -> bool:
    if kind == "s":
        return isinstance(value, str) and len(value) <= LONGEST_TEST
    if kind == "xs":
        return isinstance(value, list) and len(value) <= LONGEST_LIST and all(_fits("n", number) for number in value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


# ---- words -----------------------------------------------------------------------------------------------------------


def spell(text: str) -> str:
    """A sentence or a test in words: each digit and sign by its name; only words and ` : |` remain.

    `f(12, [3]) == -5` is `one two comma open three close is minus five`.
    """
    for sign, name in (("f(", ""), (") ==", " is "), ("==", " is "), (";", " ")):
        text = text.replace(sign, name)
    pieces = re.findall(r"[a-z]+|\d|[-,:|\[\]]", text.lower())
    names = {"-": "minus", ",": "comma", "[": "open", "]": "close"}
    return " ".join(DIGITS[int(piece)] if piece.isdigit() else names.get(piece, piece) for piece in pieces)


def _from_words(text: str) -> str:
    """The Python source of a test in words; unknown words make it invalid Python."""
    left, found, right = text.lower().partition(" is ")
    if not found:
        raise ValueError("no `is`")
    return f"f({_value(left)}) == {_value(right)}"


def _value(text: str) -> str:
    return "".join(str(DIGITS.index(word)) if word in DIGITS else SIGNS.get(word, "?") for word in text.split())
