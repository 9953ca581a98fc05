"""The functions that generated repositories are made of: what each does, its code, and which others it calls."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True)
class Unit:
    """One function.

    Attributes:
        name: of the function; letters only.
        arguments: names of its parameters, which say their kinds: `n` and `m` are whole numbers, `xs` a list of them,
            `s` a text.
        does: its docstring, with `{a}` for a number that is drawn.
        body: its code; no loop whose end depends on a number that a mutation may change for ever.
        ranges: smallest and largest value of each number.
        level: the lowest difficulty that has it.
        calls: functions of other modules that it calls.
    """

    name: str
    arguments: str
    does: str
    body: str
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    level: int = 0
    calls: tuple[str, ...] = ()

    def draw(self, rng: random.Random) -> dict[str, int]:
        """Numbers for its places."""
        return {name: rng.randint(*self.ranges[name]) for name in sorted(self.ranges)}

    def tree(self, values: Mapping[str, int]) -> ast.FunctionDef:
        """The function with its numbers, as a tree of its own."""
        return _parsed(self.name, tuple(sorted(values.items())))


@lru_cache(4096)
def _text(name: str, values: tuple[tuple[str, int], ...]) -> str:
    unit, known = UNITS[name], dict(values)
    body = "\n".join(f"    {line}" for line in unit.body.format(**known).splitlines())
    arguments = ", ".join(unit.arguments.split())
    return f'def {name}({arguments}):\n    """{unit.does.format(**known)}"""\n{body}\n'


def _parsed(name: str, values: tuple[tuple[str, int], ...]) -> ast.FunctionDef:
    (tree,) = ast.parse(_text(name, values)).body
    assert isinstance(tree, ast.FunctionDef)
    return tree


_SMALL, _MIDDLE, _LARGE = (2, 9), (10, 25), (30, 60)

UNITS: dict[str, Unit] = {
    unit.name: unit
    for unit in (
        # Of one whole number.
        Unit("scale", "n", "n times {a} plus {b}", "return n * {a} + {b}", {"a": _SMALL, "b": _SMALL}),
        Unit("shift", "n", "{b} times the sum of n and {a}", "return (n + {a}) * {b}", {"a": _SMALL, "b": _SMALL}),
        Unit("fee", "n", "n minus {a} but {b} or more", "return max(n - {a}, {b})", {"a": _SMALL, "b": _MIDDLE}),
        Unit("cap", "n", "n plus {a} but {b} or less", "return min(n + {a}, {b})", {"a": _SMALL, "b": _MIDDLE}),
        Unit("parts", "n", "n over {a} rounded down plus {b}", "return n // {a} + {b}", {"a": _SMALL, "b": _MIDDLE}),
        Unit("rest", "n", "n mod {a} times {b}", "return n % {a} * {b}", {"a": (4, 9), "b": _SMALL}),
        Unit(
            "inside",
            "n",
            "whether n is above {a} and below {b}",
            "return n > {a} and n < {b}",
            {"a": _SMALL, "b": _MIDDLE},
        ),
        Unit(
            "outside",
            "n",
            "whether n is below {a} or above {b}",
            "return n < {a} or n > {b}",
            {"a": _SMALL, "b": _MIDDLE},
        ),
        Unit(
            "discount",
            "n",
            "n minus {b} if n is above {a} else n plus {c}",
            "if n > {a}:\n    return n - {b}\nreturn n + {c}",
            {"a": _MIDDLE, "b": _SMALL, "c": _SMALL},
        ),
        Unit(
            "bonus",
            "n",
            "n times {b} if n is below {a} else n",
            "if n < {a}:\n    return n * {b}\nreturn n",
            {"a": _MIDDLE, "b": _SMALL},
        ),
        Unit(
            "slot",
            "n",
            "n plus {b} if n mod {a} is zero else n minus {c}",
            "if n % {a} == 0:\n    return n + {b}\nreturn n - {c}",
            {"a": (2, 5), "b": _SMALL, "c": _SMALL},
        ),
        Unit(
            "toll",
            "n",
            "m times {b} where m is n plus {a}",
            "m = n + {a}\nreturn m * {b}",
            {"a": _SMALL, "b": _SMALL},
        ),
        # Of lists, and of two arguments.
        Unit(
            "total",
            "xs",
            "The sum of xs, plus {a} for each element.",
            "return sum(xs) + {a} * len(xs)",
            {"a": _SMALL},
            1,
        ),
        Unit(
            "large",
            "xs",
            "The elements of xs that are above {a}.",
            "return [x for x in xs if x > {a}]",
            {"a": (0, 9)},
            1,
        ),
        Unit(
            "counted",
            "xs",
            "How many elements of xs are at least {a}.",
            "count = 0\nfor x in xs:\n    if x >= {a}:\n        count += 1\nreturn count",
            {"a": (0, 9)},
            1,
        ),
        Unit(
            "clipped",
            "xs",
            "The elements of xs, but at least {a} and at most {b}.",
            "return [min(max(x, {a}), {b}) for x in xs]",
            {"a": (0, 4), "b": (6, 12)},
            1,
        ),
        Unit("tail", "xs", "xs without its first {a} elements.", "return xs[{a}:]", {"a": (1, 3)}, 1),
        Unit(
            "head", "xs", "The first {a} elements of xs, doubled.", "return [x * 2 for x in xs[:{a}]]", {"a": (2, 4)}, 1
        ),
        Unit(
            "gaps",
            "xs",
            "By how much each element of xs but the first is more than the one before, times {a}.",
            "return [(xs[i + 1] - xs[i]) * {a} for i in range(len(xs) - 1)]",
            {"a": _SMALL},
            1,
        ),
        Unit(
            "leader",
            "xs",
            "The largest element of xs, but {a} if xs is empty.",
            "if not xs:\n    return {a}\nreturn max(xs)",
            {"a": _MIDDLE},
            1,
        ),
        Unit(
            "running",
            "xs",
            "The sums of the first one, two, three, … elements of xs, beginning with {a}.",
            "sums = []\nlast = {a}\nfor x in xs:\n    last += x\n    sums.append(last)\nreturn sums",
            {"a": _SMALL},
            1,
        ),
        Unit(
            "weighed",
            "xs n",
            "The sum of the elements of xs that are below n, times {a}.",
            "return sum(x for x in xs if x < n) * {a}",
            {"a": _SMALL},
            1,
        ),
        Unit("rate", "n m", "{a} times n plus {b} times m.", "return {a} * n + {b} * m", {"a": _SMALL, "b": _SMALL}, 1),
        Unit("apart", "n m", "Whether n and m differ by more than {a}.", "return abs(n - m) > {a}", {"a": _SMALL}, 1),
        Unit(
            "winner",
            "n m",
            "n if it is above m by more than {a}, else m plus {b}.",
            "if n > m + {a}:\n    return n\nreturn m + {b}",
            {"a": _SMALL, "b": _SMALL},
            1,
        ),
        Unit(
            "every", "xs", "Each {a}th element of xs, beginning with the first.", "return xs[::{a}]", {"a": (2, 3)}, 1
        ),
        # Of texts, and functions that call others.
        Unit(
            "padded",
            "s",
            "s with dots in front of it, {a} characters long at least.",
            "return s.rjust({a}, '.')",
            {"a": (4, 12)},
            2,
        ),
        Unit(
            "short",
            "s",
            "The first {a} characters of s, and a star if it has more.",
            "if len(s) > {a}:\n    return s[:{a}] + '*'\nreturn s",
            {"a": (1, 6)},
            2,
        ),
        Unit(
            "vowels",
            "s",
            "How many vowels s has, times {a}.",
            "return sum(1 for c in s if c in 'aeiou') * {a}",
            {"a": _SMALL},
            2,
        ),
        Unit(
            "turned",
            "s",
            "Each letter of s {a} places further in the alphabet, which begins anew behind z.",
            "return ''.join(chr((ord(c) - 97 + {a}) % 26 + 97) for c in s)",
            {"a": (1, 20)},
            2,
        ),
        Unit(
            "bill",
            "xs",
            "The sum of what `fee` gives for the elements of xs, plus {a}.",
            "return sum(fee(x) for x in xs) + {a}",
            {"a": _SMALL},
            2,
            ("fee",),
        ),
        Unit(
            "graded",
            "xs",
            "What `scale` gives for the elements of xs, where `inside` holds for them, else {a}.",
            "return [scale(x) if inside(x) else {a} for x in xs]",
            {"a": (0, 9)},
            2,
            ("scale", "inside"),
        ),
        Unit(
            "table",
            "n m",
            "`discount` of n, and {a} more than `cap` of m, as a list.",
            "return [discount(n), cap(m) + {a}]",
            {"a": _SMALL},
            2,
            ("discount", "cap"),
        ),
        Unit(
            "report",
            "xs",
            "The sums of `running`, without those that are not above {a}.",
            "return [x for x in running(xs) if x > {a}]",
            {"a": (0, 9)},
            2,
            ("running",),
        ),
        Unit(
            "label",
            "s",
            "`short` of s, `padded`, and {a} equals signs.",
            "return padded(short(s)) + '=' * {a}",
            {"a": (1, 4)},
            2,
            ("short", "padded"),
        ),
        Unit(
            "score",
            "xs n",
            "`weighed` of xs and n, plus `rate` of n and {a}.",
            "return weighed(xs, n) + rate(n, {a})",
            {"a": _SMALL},
            2,
            ("weighed", "rate"),
        ),
    )
}
