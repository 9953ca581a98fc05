"""The effect of a bug: inputs that show it and inputs that do not, found by running both functions.

The functions come from the templates, so they run in this process; nothing that a policy writes does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl_hier_plugins.environments.bug_reproduction.templates import TEMPLATES

LISTS: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (-2,), (1, 2), (2, 1), (1, 1), (3, -3), (-1, -4), (0, 5, 0),
    (1, 2, 3), (3, 1, 2), (1, 3, 2), (2, 2, 2), (1, 2, 1, 4), (-5, 7, -5), (4, 4, 9, 1),
)  # fmt: skip
MOST = 400
MANY = (*range(-30, 130), 1000, -1000)
"""Whole numbers that a test may have."""
WORDS = ("", "a", "u", "ab", "aa", "aba", "abca", "aab", "abb", "bAb", "hello", "apple pie", "level", "abcdefg", "Unit")


@dataclass(frozen=True)
class Case:
    """One input and the results of the correct and the buggy function (an exception by its name)."""

    arguments: tuple[Any, ...]
    correct: Any
    buggy: Any

    @property
    def shows(self) -> bool:
        """Whether the input shows the bug."""
        return bool(self.correct != self.buggy)

    @property
    def test(self) -> str:
        """The right test of the input."""
        return f"f({self.spelt}) == {self.correct!r}"

    @property
    def spelt(self) -> str:
        """The arguments as a call has them."""
        return ", ".join(repr(list(value) if isinstance(value, tuple) else value) for value in self.arguments)


@lru_cache(maxsize=4096)
def function(source: str) -> Callable[..., Any]:
    """A template's source as a function."""
    names: dict[str, Any] = {}
    exec(compile(source, "<template>", "exec"), names)
    found: Callable[..., Any] = names["f"]
    return found


def right_tests(name: str, values: Mapping[str, int], bug: int) -> tuple[str, ...]:
    """Tests that show the bug: with the inputs of `cases`, and for a function of one whole number with `MANY`."""
    return _right_tests(name, tuple(sorted(values.items())), bug)


@lru_cache(maxsize=4096)
def _right_tests(name: str, values: tuple[tuple[str, int], ...], bug: int) -> tuple[str, ...]:
    further = ((number,) for number in MANY) if TEMPLATES[name].arguments == "n" else ()
    found = (*_cases(name, values, bug), *_run(name, dict(values), bug, further))
    return tuple(dict.fromkeys(case.test for case in found if case.shows))


def cases(name: str, values: Mapping[str, int], bug: int) -> tuple[Case, ...]:
    """The inputs for a function and a bug, simple ones first."""
    return _cases(name, tuple(sorted(values.items())), bug)


@lru_cache(maxsize=4096)
def _cases(name: str, values: tuple[tuple[str, int], ...], bug: int) -> tuple[Case, ...]:
    known = dict(values)
    inputs = itertools.product(*(_inputs(kind, known.values()) for kind in TEMPLATES[name].arguments.split()))
    return tuple(_run(name, known, bug, itertools.islice(inputs, MOST)))


def _run(name: str, values: Mapping[str, int], bug: int, inputs: Iterable[tuple[Any, ...]]) -> Iterator[Case]:
    correct = function(TEMPLATES[name].source(values))
    buggy = function(TEMPLATES[name].source(values, bug))
    for arguments in inputs:
        wrong: Any
        try:
            wrong = buggy(*_fresh(arguments))
        except Exception as error:
            wrong = type(error).__name__
        yield Case(arguments, correct(*_fresh(arguments)), wrong)


def _fresh(arguments: Iterable[Any]) -> list[Any]:
    return [list(value) if isinstance(value, tuple) else value for value in arguments]


def _inputs(kind: str, numbers: Iterable[int]) -> list[Any]:
    numbers = list(numbers)
    if kind in ("n", "m"):
        near = [number + step for number in numbers for step in (0, -1, 1)]
        return list(dict.fromkeys([*near, 0, 1, 2, 4, 10, -1, -3, 25]))
    if kind == "s":
        return list(WORDS)
    shapes = ((0,), (1,), (-1,), (0, -1, 0), (0, 1), (5, 1, -1), (1, 1, -2))
    return [*LISTS, *(tuple(number + step for step in shape) for number in numbers for shape in shapes)]
