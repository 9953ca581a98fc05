"""Code in words, for models whose vocabulary has letters only: `return n * 12` is `return n times one two`."""

from __future__ import annotations

import re

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIGNS = {
    **{"+": "plus", "-": "minus", "*": "times", "//": "over", "%": "mod", "=": "set"},
    **{"<": "below", "<=": "most", ">": "above", ">=": "least", "==": "equals", "!=": "differs"},
    **{"(": "open", ")": "close", "[": "begin", "]": "end", ",": "comma", ".": "dot", ":": ":", '"""': "doc"},
}
_CODE = {word: sign for sign, word in SIGNS.items()}
_TOKEN = re.compile(r'"""|//|[<>=!]=|[A-Za-z]+|\d|[-+*%=<>()\[\],.:]')


def spell(text: str) -> str:
    """Code, or a sentence, in words and colons; signs that have no word are left out."""
    return " ".join(
        DIGITS[int(token)] if token.isdigit() else SIGNS.get(token, token.lower())
        for token in _TOKEN.findall(text.encode("ascii", "ignore").decode())
    )


def unspell(words: str) -> str:
    """The code that words stand for, as a line without indentation."""
    pieces: list[str] = []
    number = False
    for word in words.split():
        digit = word in DIGITS
        piece = (
            str(DIGITS.index(word)) if digit else {"true": "True", "false": "False"}.get(word, _CODE.get(word, word))
        )
        pieces.append(piece if digit and number else f" {piece}")
        number = digit
    return "".join(pieces).strip()


def take_number(words: str) -> tuple[int | None, str]:
    """The number that words begin with, and the words behind it; None where they begin with none."""
    said, left = "", words.split()
    while left and left[0] in DIGITS and len(said) < 6:
        said += str(DIGITS.index(left.pop(0)))
    return (int(said) if said else None), " ".join(left)
