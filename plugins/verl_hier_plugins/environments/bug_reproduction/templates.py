"""The generated functions and their bugs: templates whose numbers are drawn, and small changes that break them.

Every function that the environment runs is written here. A template is a function `f`, a description, and its bugs; a
bug replaces a part of the source, and a sentence says when that shows. `{a}`, `{b}` and `{c}` are numbers that a task
draws.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A change of a template's source.

    Attributes:
        old: a part that occurs once in the source.
        new: its replacement.
        when: when the bug shows, as a bug report would say.
    """

    old: str
    new: str
    when: str


@dataclass(frozen=True)
class Template:
    """A function.

    Attributes:
        name: identity of the template in tasks.
        arguments: names of the arguments: n and m are whole numbers, xs is a list of them, s is a text.
        does: what `f` returns.
        body: its lines below `def f(…):`, without indentation; a single expression is returned.
        bugs: ways to break it.
        ranges: the lowest and the highest value of each number that a task draws.
    """

    name: str
    arguments: str
    does: str
    body: str
    bugs: tuple[Bug, ...]
    ranges: Mapping[str, tuple[int, int]]

    @property
    def level(self) -> int:
        """The difficulty from which it occurs."""
        names = self.arguments.split()
        return 2 if "s" in names else 0 if names == ["n"] else 1

    def source(self, values: Mapping[str, int], bug: int | None = None) -> str:
        """The function, correct or with one of its bugs."""
        body = self.body
        if bug is not None:
            found = self.bugs[bug]
            body = body.replace(found.old, found.new, 1)
        lines = body.format(**values).split("\n")
        if len(lines) == 1:
            lines = [f"return {lines[0]}"]
        return "\n".join([f"def f({', '.join(self.arguments.split())}):", *(f"    {line}" for line in lines)]) + "\n"


# For each function: name, arguments and ranges of its numbers; what it returns; its body, which may have several lines;
# a line for each bug: old => new | when it shows.
_TABLE = """
above: n; a=2..12 b=5..40
    n plus {a} if n is above {b} , else n
    n + {a} if n > {b} else n
    > {b} => >= {b} | n is {b}
    n + {a} => n - {a} | n is above {b}
    else n => else n + 1 | n is not above {b}
below: n; a=2..12 b=5..40
    n times {a} if n is below {b} , else n
    n * {a} if n < {b} else n
    < {b} => <= {b} | n is {b}
    n * {a} => n * {a} + 1 | n is below {b}
    n < {b} => n < 0 | n is above zero and below {b}
at_least: n; a=5..40
    n if n is above {a} , else {a}
    max(n, {a})
    max => min | n is not {a}
    max(n, {a}) => n if n > 0 else {a} | n is above zero and below {a}
between: n; a=1..9 b=12..40
    n , but at least {a} and at most {b}
    max({a}, min(n, {b}))
    min(n, {b}) => n | n is above {b}
    max({a}, min(n, {b})) => min(n, {b}) | n is below {a}
    min(n, {b}) => min(n, {b} - 1) | n is at least {b}
inside: n; a=1..9 b=12..40
    true if n is from {a} to {b} , else false
    {a} <= n <= {b}
    n <= {b} => n < {b} | n is {b}
    {a} <= n => {a} < n | n is {a}
    {a} <= n <= {b} => n <= {b} | n is below {a}
multiple: n; a=3..9
    true if n is a multiple of {a} , else false
    n % {a} == 0
    == 0 => == 1 | n is a multiple of {a} or one above
    n % {a} == 0 => n % {a} == 0 and n != {a} | n is {a}
distance: n; a=5..40
    how far n is from {a}
    abs(n - {a})
    abs(n - {a}) => n - {a} | n is below {a}
    n - {a} => n + {a} | n is not zero
groups: n; a=3..7
    how many groups of {a} are needed for n things
    -(-n // {a})
    -(-n // {a}) => n // {a} | n is no multiple of {a}
    -(-n // {a}) => n // {a} + 1 | n is a multiple of {a}
rest: n; a=5..40
    n minus {a} , but not below zero
    max(0, n - {a})
    max(0, n - {a}) => n - {a} | n is below {a}
    max(0, => max(1, | n is not above {a}
price: n; a=2..9 b=1..9 c=5..20
    n times {a} , with {b} off if n is at least {c}
    n * {a} - ({b} if n >= {c} else 0)
    >= {c} => > {c} | n is {c}
    - ({b} => + ({b} | n is at least {c}
    else 0 => else 1 | n is below {c}
last_digit: n; a=2..12
    the last digit of n plus {a}
    abs(n) % 10 + {a}
    % 10 + => % 9 + | n is above eight
    % 10 => % 100 | n is above nine
sign: n; a=2..12
    {a} if n is above zero , minus {a} if n is below zero , else zero
    if n > 0:
        return {a}
    return -{a} if n < 0 else 0
    if n < 0 else 0 =>  | n is zero
    return -{a} => return {a} | n is below zero
    n > 0 => n > 1 | n is one
sum_to: n; a=1..6
    the sum of all numbers from {a} to n
    sum(range({a}, n + 1))
    n + 1 => n | n is at least {a}
    range({a}, => range({a} + 1, | n is at least {a}
steps: n; a=2..8
    how often n can be halved before it is below {a}
    count = 0
    while n >= {a}:
        n, count = n // 2, count + 1
    return count
    n >= {a} => n > {a} | n is {a}
    count + 1 => count + 2 | n is at least {a}
next_multiple: n; a=3..9
    the first multiple of {a} that is not below n
    n + -n % {a}
    n + -n % {a} => n + {a} - n % {a} | n is a multiple of {a}
    n + -n % {a} => n - n % {a} | n is no multiple of {a}
bigger: n m; a=2..12
    n if n is above m , else m plus {a}
    n if n > m else m + {a}
    n > m => n >= m | n is m
    m + {a} => m | n is below m
    n > m => n < m | n is above m
sum_capped: n m; a=10..60
    n plus m , but at most {a}
    min(n + m, {a})
    min(n + m, {a}) => n + m | the sum is above {a}
    n + m => n | m is not zero
share: n m; a=2..12
    n divided by m without the rest , or {a} if m is zero
    n // m if m else {a}
    else {a} => else 0 | m is zero
    if m else => if m > 1 else | m is one
close: n m; a=2..7
    true if n and m differ by less than {a} , else false
    abs(n - m) < {a}
    abs(n - m) < {a} => n - m < {a} | m is far above n
    < {a} => <= {a} | they differ by {a}
both: n m; a=5..40
    true if n and m are both above {a} , else false
    n > {a} and m > {a}
    and => or | one of them is above {a}
    m > {a} => m >= {a} | m is {a}
either: n m; a=5..40
    true if n or m is {a} , else false
    {a} in (n, m)
    {a} in (n, m) => n == {a} | m is {a}
    {a} in (n, m) => (n == {a}) != (m == {a}) | both are {a}
weighted: n m; a=2..5 b=6..12
    {a} times n plus {b} times m
    {a} * n + {b} * m
    {b} * m => {a} * m | m is not zero
    + {b} * m => - {b} * m | m is not zero
between_two: n m
    how many whole numbers are above n and below m
    max(0, m - n - 1)
    max(0, m - n - 1) => m - n - 1 | m is not above n
    - n - 1 => - n | m is above n
total: xs; a=2..12
    the sum of xs , plus {a} if xs is empty
    sum(xs) if xs else {a}
    else {a} => else 0 | xs is empty
    sum(xs) => sum(xs[1:]) | xs is not empty
count_above: xs; a=2..12
    how many numbers of xs are above {a}
    len([x for x in xs if x > {a}])
    > {a} => >= {a} | {a} is in xs
    in xs if => in set(xs) if | a number occurs twice
    in xs if => in xs[:-1] if | the last number is above {a}
largest: xs; a=2..12
    the largest number of xs , or {a} if xs is empty
    max(xs) if xs else {a}
    max(xs) => max(0, *xs) | all numbers are below zero
    else {a} => else 0 | xs is empty
    max(xs) => xs[-1] | the last number is not the largest
first_above: xs; a=2..12
    the first number of xs above {a} , or zero
    next((x for x in xs if x > {a}), 0)
    in xs if => in xs[::-1] if | two numbers are above {a}
    in xs if => in sorted(xs) if | a smaller one comes later
    > {a}), 0) => > {a}), {a}) | no number is above {a}
rises: xs
    true if every number of xs is above the one before , else false
    all(x < y for x, y in zip(xs, xs[1:]))
    x < y => x <= y | a number occurs twice in a row
    all(x < y for x, y in zip(xs, xs[1:])) => len(xs) < 2 or xs[0] < xs[-1] | it falls in between
different: xs
    how many different numbers are in xs
    len(set(xs))
    set(xs) => xs | a number occurs twice
    set(xs) => set(map(abs, xs)) | a sign differs
keep: xs; a=2..12
    the numbers of xs that are at most {a}
    [x for x in xs if x <= {a}]
    <= {a} => < {a} | {a} is in xs
    in xs if => in sorted(xs) if | xs is not sorted
    [x for x in xs if x <= {a}] => [x for x in xs if 0 <= x <= {a}] | a number is below zero
twice: xs; a=2..12
    every number of xs times {a}
    [x * {a} for x in xs]
    in xs] => in xs if x] | zero is in xs
    x * {a} => abs(x) * {a} | a number is below zero
place: xs n
    where n is in xs for the first time , from zero , or minus one
    xs.index(n) if n in xs else -1
    xs.index(n) => len(xs) - 1 - xs[::-1].index(n) | n is there twice
    else -1 => else 0 | n is not in xs
    xs.index(n) => xs.index(n) + 1 | n is in xs
start: xs n
    the first n numbers of xs
    xs[: max(n, 0)]
    max(n, 0) => n | n is below zero
    max(n, 0) => max(n, 1) | n is zero
    max(n, 0) => max(n - 1, 0) | n is above zero
mirror: s
    true if s reads the same backwards , else false
    s == s[::-1]
    s == s[::-1] => s[:1] == s[-1:] | only the first and the last letter agree
    s == s[::-1] => s != '' and s == s[::-1] | s is empty
vowels: s
    how many vowels are in s
    sum(letter in 'aeiou' for letter in s)
    'aeiou' => 'aeio' | u is in s
    in s) => in set(s)) | a vowel occurs twice
    in s) => in s[1:]) | s begins with a vowel
shorten: s; a=2..4
    s , cut after {a} letters with a dot behind if it is longer
    s if len(s) <= {a} else s[:{a}] + '.'
    <= {a} => < {a} | s has {a} letters
    s[:{a}] => s[: {a} - 1] | s has more than {a} letters
    s[:{a}] + '.' => s[:{a}] | s has more than {a} letters
repeat: s n
    s n times , with a dash between
    '-'.join([s] * n)
    '-'.join([s] * n) => '-'.join([s] * n) or s | n is not above zero
    '-'.join([s] * n) => (s + '-') * n | n is above zero
longest_run: s
    the length of the longest run of one letter in s
    best = run = 0
    for i, letter in enumerate(s):
        run = run + 1 if i and s[i - 1] == letter else 1
        best = max(best, run)
    return best
    best = max(best, run) => best = run | a shorter run ends s
    s[i - 1] == letter => letter in s[:i] | a letter comes back later
capital: s
    s with its first letter as a capital
    s[:1].upper() + s[1:]
    s[:1].upper() + s[1:] => s.capitalize() | s has another capital
    s[:1].upper() + s[1:] => s.title() | s has two words
"""


def _parse(block: str) -> Template:
    head, does, *rest = (line.removeprefix("    ") for line in block.splitlines())
    name, _, signature = head.partition(": ")
    arguments, _, numbers = signature.partition("; ")
    ranges = {letter: (int(low), int(high)) for letter, low, high in re.findall(r"(\w)=(\d+)\.\.(\d+)", numbers)}
    body = "\n".join(line for line in rest if " => " not in line)
    bugs = tuple(Bug(*re.split(r" => | \| ", line)) for line in rest if " => " in line)
    return Template(name, arguments, does, body, bugs, ranges)


TEMPLATES = {template.name: template for template in map(_parse, re.split(r"\n(?! )", _TABLE.strip()))}
"""All functions by name."""
