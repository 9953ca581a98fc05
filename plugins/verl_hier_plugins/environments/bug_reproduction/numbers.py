"""Templates of functions of one whole number, and of two."""

from __future__ import annotations

from verl_hier_plugins.environments.bug_reproduction.templates import Bug, Template

SMALL, MIDDLE = (2, 12), (5, 40)

ONE_NUMBER = (
    Template(
        "above",
        "n",
        "n plus {a} if n is above {b} , else n",
        "n + {a} if n > {b} else n",
        (
            Bug("> {b}", ">= {b}", "n is {b}"),
            Bug("n + {a}", "n - {a}", "n is above {b}"),
            Bug("else n", "else n + 1", "n is not above {b}"),
        ),
        {"a": SMALL, "b": MIDDLE},
    ),
    Template(
        "below",
        "n",
        "n times {a} if n is below {b} , else n",
        "n * {a} if n < {b} else n",
        (
            Bug("< {b}", "<= {b}", "n is {b}"),
            Bug("n * {a}", "n * {a} + 1", "n is below {b}"),
            Bug("n < {b}", "n < 0", "n is above zero and below {b}"),
        ),
        {"a": SMALL, "b": MIDDLE},
    ),
    Template(
        "at_least",
        "n",
        "n if n is above {a} , else {a}",
        "max(n, {a})",
        (Bug("max", "min", "n is not {a}"), Bug("max(n, {a})", "n if n > 0 else {a}", "n is above zero and below {a}")),
        {"a": MIDDLE},
    ),
    Template(
        "between",
        "n",
        "n , but at least {a} and at most {b}",
        "max({a}, min(n, {b}))",
        (
            Bug("min(n, {b})", "n", "n is above {b}"),
            Bug("max({a}, min(n, {b}))", "min(n, {b})", "n is below {a}"),
            Bug("min(n, {b})", "min(n, {b} - 1)", "n is at least {b}"),
        ),
        {"a": (1, 9), "b": (12, 40)},
    ),
    Template(
        "inside",
        "n",
        "true if n is from {a} to {b} , else false",
        "{a} <= n <= {b}",
        (
            Bug("n <= {b}", "n < {b}", "n is {b}"),
            Bug("{a} <= n", "{a} < n", "n is {a}"),
            Bug("{a} <= n <= {b}", "n <= {b}", "n is below {a}"),
        ),
        {"a": (1, 9), "b": (12, 40)},
    ),
    Template(
        "multiple",
        "n",
        "true if n is a multiple of {a} , else false",
        "n % {a} == 0",
        (
            Bug("== 0", "== 1", "n is a multiple of {a} or one above"),
            Bug("n % {a} == 0", "n % {a} == 0 and n != {a}", "n is {a}"),
        ),
        {"a": (3, 9)},
    ),
    Template(
        "distance",
        "n",
        "how far n is from {a}",
        "abs(n - {a})",
        (Bug("abs(n - {a})", "n - {a}", "n is below {a}"), Bug("n - {a}", "n + {a}", "n is not zero")),
        {"a": MIDDLE},
    ),
    Template(
        "groups",
        "n",
        "how many groups of {a} are needed for n things",
        "-(-n // {a})",
        (
            Bug("-(-n // {a})", "n // {a}", "n is no multiple of {a}"),
            Bug("-(-n // {a})", "n // {a} + 1", "n is a multiple of {a}"),
        ),
        {"a": (3, 7)},
    ),
    Template(
        "rest",
        "n",
        "n minus {a} , but not below zero",
        "max(0, n - {a})",
        (Bug("max(0, n - {a})", "n - {a}", "n is below {a}"), Bug("max(0, ", "max(1, ", "n is not above {a}")),
        {"a": MIDDLE},
    ),
    Template(
        "price",
        "n",
        "n times {a} , with {b} off if n is at least {c}",
        "n * {a} - ({b} if n >= {c} else 0)",
        (
            Bug(">= {c}", "> {c}", "n is {c}"),
            Bug("- ({b}", "+ ({b}", "n is at least {c}"),
            Bug("else 0", "else 1", "n is below {c}"),
        ),
        {"a": (2, 9), "b": (1, 9), "c": (5, 20)},
    ),
    Template(
        "last_digit",
        "n",
        "the last digit of n plus {a}",
        "abs(n) % 10 + {a}",
        (Bug("% 10 +", "% 9 +", "n is above eight"), Bug("% 10", "% 100", "n is above nine")),
        {"a": SMALL},
    ),
    Template(
        "sign",
        "n",
        "{a} if n is above zero , minus {a} if n is below zero , else zero",
        "if n > 0:\n    return {a}\nreturn -{a} if n < 0 else 0",
        (
            Bug("if n < 0 else 0", "", "n is zero"),
            Bug("return -{a}", "return {a}", "n is below zero"),
            Bug("n > 0", "n > 1", "n is one"),
        ),
        {"a": SMALL},
    ),
    Template(
        "sum_to",
        "n",
        "the sum of all numbers from {a} to n",
        "sum(range({a}, n + 1))",
        (Bug("n + 1", "n", "n is at least {a}"), Bug("range({a},", "range({a} + 1,", "n is at least {a}")),
        {"a": (1, 6)},
    ),
    Template(
        "steps",
        "n",
        "how often n can be halved before it is below {a}",
        "count = 0\nwhile n >= {a}:\n    n, count = n // 2, count + 1\nreturn count",
        (Bug("n >= {a}", "n > {a}", "n is {a}"), Bug("count + 1", "count + 2", "n is at least {a}")),
        {"a": (2, 8)},
    ),
    Template(
        "next_multiple",
        "n",
        "the first multiple of {a} that is not below n",
        "n + -n % {a}",
        (
            Bug("n + -n % {a}", "n + {a} - n % {a}", "n is a multiple of {a}"),
            Bug("n + -n % {a}", "n - n % {a}", "n is no multiple of {a}"),
        ),
        {"a": (3, 9)},
    ),
)

TWO_NUMBERS = (
    Template(
        "bigger",
        "n m",
        "n if n is above m , else m plus {a}",
        "n if n > m else m + {a}",
        (
            Bug("n > m", "n >= m", "n is m"),
            Bug("m + {a}", "m", "n is below m"),
            Bug("n > m", "n < m", "n is above m"),
        ),
        {"a": SMALL},
    ),
    Template(
        "sum_capped",
        "n m",
        "n plus m , but at most {a}",
        "min(n + m, {a})",
        (Bug("min(n + m, {a})", "n + m", "the sum is above {a}"), Bug("n + m", "n", "m is not zero")),
        {"a": (10, 60)},
    ),
    Template(
        "share",
        "n m",
        "n divided by m without the rest , or {a} if m is zero",
        "n // m if m else {a}",
        (Bug("else {a}", "else 0", "m is zero"), Bug("if m else", "if m > 1 else", "m is one")),
        {"a": SMALL},
    ),
    Template(
        "close",
        "n m",
        "true if n and m differ by less than {a} , else false",
        "abs(n - m) < {a}",
        (
            Bug("abs(n - m) < {a}", "n - m < {a}", "m is far above n"),
            Bug("< {a}", "<= {a}", "they differ by {a}"),
        ),
        {"a": (2, 7)},
    ),
    Template(
        "both",
        "n m",
        "true if n and m are both above {a} , else false",
        "n > {a} and m > {a}",
        (Bug("and", "or", "one of them is above {a}"), Bug("m > {a}", "m >= {a}", "m is {a}")),
        {"a": MIDDLE},
    ),
    Template(
        "either",
        "n m",
        "true if n or m is {a} , else false",
        "{a} in (n, m)",
        (
            Bug("{a} in (n, m)", "n == {a}", "m is {a}"),
            Bug("{a} in (n, m)", "(n == {a}) != (m == {a})", "both are {a}"),
        ),
        {"a": MIDDLE},
    ),
    Template(
        "weighted",
        "n m",
        "{a} times n plus {b} times m",
        "{a} * n + {b} * m",
        (Bug("{b} * m", "{a} * m", "m is not zero"), Bug("+ {b} * m", "- {b} * m", "m is not zero")),
        {"a": (2, 5), "b": (6, 12)},
    ),
    Template(
        "between_two",
        "n m",
        "how many whole numbers are above n and below m",
        "max(0, m - n - 1)",
        (
            Bug("max(0, m - n - 1)", "m - n - 1", "m is not above n"),
            Bug("- n - 1", "- n", "m is above n"),
        ),
        {},
    ),
)
