"""Generated arithmetic without a package, and its spelling in words for models with a small vocabulary."""

from __future__ import annotations

import random
from itertools import accumulate

from verl_hier.environments.numbers import number_of

LEVELS = ((2, 2, "+-", 0), (3, 2, "+-", 0), (3, 2, "+-*", 0), (3, 3, "+-*", 1), (4, 3, "+-*", 2))
"""For each difficulty: operands, digits of a number, operators, and how many operands are sums in brackets."""

WORDS = {
    **{"0": "zero", "1": "one", "2": "two", "3": "three", "4": "four"},
    **{"5": "five", "6": "six", "7": "seven", "8": "eight", "9": "nine"},
    **{"+": "plus", "-": "minus", "*": "times", "(": "open", ")": "close"},
}
SIGNS = {word: sign for sign, word in WORDS.items()}


def draw(rng: random.Random, difficulty: int) -> tuple[str, int]:
    """An expression and its value."""
    count, digits, signs, brackets = LEVELS[min(difficulty, len(LEVELS) - 1)]
    operands = [_number_below(rng, digits) for _ in range(count)]
    for place in rng.sample(range(count), brackets):
        text, value = _chain(rng, [_number_below(rng, digits) for _ in range(2)], "+-")
        operands[place] = f"({text})", value
    return _chain(rng, operands, signs)


def _number_below(rng: random.Random, digits: int) -> tuple[str, int]:
    value = rng.randrange(10 ** rng.randint(1, digits))
    return str(value), value


def _chain(rng: random.Random, operands: list[tuple[str, int]], signs: str) -> tuple[str, int]:
    """Operands joined by signs, products first."""
    text, product = operands[0]
    total = 0
    for operand, value in operands[1:]:
        sign = rng.choice(signs)
        text += f" {sign} {operand}"
        if sign == "*":
            product *= value
        else:
            total += product
            product = value if sign == "+" else -value
    return text, total + product


def draw_last_digit(rng: random.Random, difficulty: int) -> tuple[str, int]:
    """A sum of 4, 6, 8, … digits, more with the difficulty, and the last digit of its value."""
    digits = [rng.randrange(10) for _ in range(4 + 2 * difficulty)]
    return " + ".join(map(str, digits)), sum(digits) % 10


def worked_last_digit(expression: str) -> str:
    """The work on a sum of `draw_last_digit`, digit by digit: `7 + 8 = 5 5 + 9 = 4` for `7 + 8 + 9`."""
    first, *others = (int(part) for part in expression.split(" + "))
    ends = [total % 10 for total in accumulate(others, initial=first)]
    return " ".join(f"{end} + {digit} = {after}" for end, digit, after in zip(ends, others, ends[1:], strict=False))


def spell(text: str) -> str:
    """`-12 + 3` as `minus one two plus three`; other characters are left out."""
    return " ".join(WORDS[letter] for letter in text if letter in WORDS)


def read(text: str) -> str | None:
    """`minus one two plus three` as `-12+3`; None when a word is neither a digit nor an operator."""
    words = text.lower().split()
    if not words or any(word not in SIGNS for word in words):
        return None
    return "".join(SIGNS[word] for word in words)


def same_number(given: str, expected: str) -> bool:
    """Whether two texts are the same number: `$1,234.50` and `1234.5` are; `10/2`, which is still to do, is none.

    Spaces do not count, because policies with a small vocabulary say one digit after the other.
    """
    found, true = (number_of(text.replace(" ", ""), written_out=False) for text in (given, expected))
    return found is not None and found == true
