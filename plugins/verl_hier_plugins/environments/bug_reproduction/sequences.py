"""Templates of functions of lists and of texts."""

from __future__ import annotations

from verl_hier_plugins.environments.bug_reproduction.numbers import SMALL
from verl_hier_plugins.environments.bug_reproduction.templates import Bug, Template

LISTS = (
    Template(
        "total",
        "xs",
        "the sum of xs , plus {a} if xs is empty",
        "sum(xs) if xs else {a}",
        (Bug("else {a}", "else 0", "xs is empty"), Bug("sum(xs)", "sum(xs[1:])", "xs is not empty")),
        {"a": SMALL},
    ),
    Template(
        "count_above",
        "xs",
        "how many numbers of xs are above {a}",
        "len([x for x in xs if x > {a}])",
        (
            Bug("> {a}", ">= {a}", "{a} is in xs"),
            Bug("in xs if", "in set(xs) if", "a number occurs twice"),
            Bug("in xs if", "in xs[:-1] if", "the last number is above {a}"),
        ),
        {"a": SMALL},
    ),
    Template(
        "largest",
        "xs",
        "the largest number of xs , or {a} if xs is empty",
        "max(xs) if xs else {a}",
        (
            Bug("max(xs)", "max(0, *xs)", "all numbers are below zero"),
            Bug("else {a}", "else 0", "xs is empty"),
            Bug("max(xs)", "xs[-1]", "the last number is not the largest"),
        ),
        {"a": SMALL},
    ),
    Template(
        "first_above",
        "xs",
        "the first number of xs above {a} , or zero",
        "next((x for x in xs if x > {a}), 0)",
        (
            Bug("in xs if", "in xs[::-1] if", "two numbers are above {a}"),
            Bug("in xs if", "in sorted(xs) if", "a smaller one comes later"),
            Bug("> {a}), 0)", "> {a}), {a})", "no number is above {a}"),
        ),
        {"a": SMALL},
    ),
    Template(
        "rises",
        "xs",
        "true if every number of xs is above the one before , else false",
        "all(x < y for x, y in zip(xs, xs[1:]))",
        (
            Bug("x < y", "x <= y", "a number occurs twice in a row"),
            Bug("all(x < y for x, y in zip(xs, xs[1:]))", "len(xs) < 2 or xs[0] < xs[-1]", "it falls in between"),
        ),
        {},
    ),
    Template(
        "different",
        "xs",
        "how many different numbers are in xs",
        "len(set(xs))",
        (Bug("set(xs)", "xs", "a number occurs twice"), Bug("set(xs)", "set(map(abs, xs))", "a sign differs")),
        {},
    ),
    Template(
        "keep",
        "xs",
        "the numbers of xs that are at most {a}",
        "[x for x in xs if x <= {a}]",
        (
            Bug("<= {a}", "< {a}", "{a} is in xs"),
            Bug("in xs if", "in sorted(xs) if", "xs is not sorted"),
            Bug("[x for x in xs if x <= {a}]", "[x for x in xs if 0 <= x <= {a}]", "a number is below zero"),
        ),
        {"a": SMALL},
    ),
    Template(
        "twice",
        "xs",
        "every number of xs times {a}",
        "[x * {a} for x in xs]",
        (Bug("in xs]", "in xs if x]", "zero is in xs"), Bug("x * {a}", "abs(x) * {a}", "a number is below zero")),
        {"a": SMALL},
    ),
    Template(
        "place",
        "xs n",
        "where n is in xs for the first time , from zero , or minus one",
        "xs.index(n) if n in xs else -1",
        (
            Bug("xs.index(n)", "len(xs) - 1 - xs[::-1].index(n)", "n is there twice"),
            Bug("else -1", "else 0", "n is not in xs"),
            Bug("xs.index(n)", "xs.index(n) + 1", "n is in xs"),
        ),
        {},
    ),
    Template(
        "start",
        "xs n",
        "the first n numbers of xs",
        "xs[: max(n, 0)]",
        (
            Bug("max(n, 0)", "n", "n is below zero"),
            Bug("max(n, 0)", "max(n, 1)", "n is zero"),
            Bug("max(n, 0)", "max(n - 1, 0)", "n is above zero"),
        ),
        {},
    ),
)

TEXTS = (
    Template(
        "mirror",
        "s",
        "true if s reads the same backwards , else false",
        "s == s[::-1]",
        (
            Bug("s == s[::-1]", "s[:1] == s[-1:]", "only the first and the last letter agree"),
            Bug("s == s[::-1]", "s != '' and s == s[::-1]", "s is empty"),
        ),
        {},
    ),
    Template(
        "vowels",
        "s",
        "how many vowels are in s",
        "sum(letter in 'aeiou' for letter in s)",
        (
            Bug("'aeiou'", "'aeio'", "u is in s"),
            Bug("in s)", "in set(s))", "a vowel occurs twice"),
            Bug("in s)", "in s[1:])", "s begins with a vowel"),
        ),
        {},
    ),
    Template(
        "shorten",
        "s",
        "s , cut after {a} letters with a dot behind if it is longer",
        "s if len(s) <= {a} else s[:{a}] + '.'",
        (
            Bug("<= {a}", "< {a}", "s has {a} letters"),
            Bug("s[:{a}]", "s[: {a} - 1]", "s has more than {a} letters"),
            Bug(" + '.'", "", "s has more than {a} letters"),
        ),
        {"a": (2, 4)},
    ),
    Template(
        "repeat",
        "s n",
        "s n times , with a dash between",
        "'-'.join([s] * n)",
        (
            Bug("'-'.join([s] * n)", "'-'.join([s] * n) or s", "n is not above zero"),
            Bug("'-'.join([s] * n)", "(s + '-') * n", "n is above zero"),
        ),
        {},
    ),
    Template(
        "longest_run",
        "s",
        "the length of the longest run of one letter in s",
        "best = run = 0\nfor i, letter in enumerate(s):\n    run = run + 1 if i and s[i - 1] == letter else 1\n"
        "    best = max(best, run)\nreturn best",
        (
            Bug("    best = max(best, run)\nreturn best", "    best = run\nreturn best", "a shorter run ends s"),
            Bug("s[i - 1] == letter", "letter in s[:i]", "a letter comes back later"),
        ),
        {},
    ),
    Template(
        "capital",
        "s",
        "s with its first letter as a capital",
        "s[:1].upper() + s[1:]",
        (
            Bug("s[:1].upper() + s[1:]", "s.capitalize()", "s has another capital"),
            Bug("s[:1].upper() + s[1:]", "s.title()", "s has two words"),
        ),
        {},
    ),
)
