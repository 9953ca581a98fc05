"""What a function with a bug is made from: a template whose numbers are drawn, and small changes that break it.

Everything that is run here is written here. A template is a function `f`, what it does in words, and its bugs; a bug
replaces a part of the source and says when that shows. `{a}`, `{b}` and `{c}` are numbers that a task draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A change of a template's source.

    Attributes:
        old: a part that occurs once in the source.
        new: what stands there instead.
        when: when it shows, as a bug report would say.
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
        body: its lines below `def f(…):`, without indentation; an expression alone is returned.
        bugs: ways to break it.
        ranges: for each number that a task draws, the lowest and the highest.
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
