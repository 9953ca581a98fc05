"""What the values of options have to satisfy beyond their type, declared in their annotations.

    gamma: ZeroToOne = 0.95
    subgoal_turns: Count = 12
    executor_prompt: Annotated[str, Template("subgoal")] = "goal: {subgoal} | {observation}"

`host.options.build_options` refuses what does not hold and names the recipe line; type checkers see the plain type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any

STANDARD_FIELDS = ("instruction", "observation", "admissible")
"""Fields that every template may use: the task, the environment's last answer, the actions it admits."""


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds."""

    low: float = -math.inf
    """The lowest number."""
    high: float = math.inf
    """The highest number."""
    open: bool = False
    """Whether the lowest number itself is left out."""

    def problem(self, value: Any) -> str | None:
        """What is wrong with a number, as the rest of a sentence; None when it is inside."""
        inside = self.low < value <= self.high if self.open else self.low <= value <= self.high
        return None if inside else f"must be {self}, got {value}"

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"above {self.low:g}" if self.open else f"at least {self.low:g}"
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"above {self.low:g} and at most {self.high:g}" if self.open else f"from {self.low:g} to {self.high:g}"


@dataclass(frozen=True, init=False)
class Template:
    """A text with `{name}` fields, which the worker fills by `rollout.prompts`."""

    fields: tuple[str, ...]
    """Fields that the worker fills besides `STANDARD_FIELDS` and the `info` of the environment's reset."""
    later: bool
    """Whether it is filled with the `info` of later answers too, which is not known before an action."""

    def __init__(self, *fields: str, later: bool = False) -> None:
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "later", later)

    def problem(self, value: Any) -> str | None:
        """Why a text is no template, as the rest of a sentence; None when it is one."""
        try:
            names = field_names(value)
        except ValueError as error:
            return f"the template {value!r} cannot be read: {error}; write {{{{ and }}}} for braces that are meant"
        if not all(name.isidentifier() for name in names):
            return f"the template {value!r} has a field without a name; write {{{{ and }}}} for braces that are meant"
        return None

    def __str__(self) -> str:
        more = ", ".join(f"{{{name}}}" for name in self.fields)
        return f"template, also {more}" if more else "template"


def field_names(template: str) -> set[str]:
    """Names of the fields of a template.

    Raises:
        ValueError: for a brace without its other half.
    """
    found: set[str] = set()
    for _, name, specification, _ in Formatter().parse(template):
        if name is not None:
            found.add(name.partition(".")[0].partition("[")[0])
            found |= field_names(specification or "")
    return found


Count = Annotated[int, Range(1)]
"""A whole number of at least 1."""
CountOrZero = Annotated[int, Range(0)]
"""A whole number of at least 0."""
AtLeastOne = Annotated[float, Range(1)]
"""A number of at least 1."""
NonNegative = Annotated[float, Range(0)]
"""A number of at least 0."""
Positive = Annotated[float, Range(0, open=True)]
"""A number above 0."""
AboveZeroToOne = Annotated[float, Range(0, 1, open=True)]
"""A number above 0 and at most 1."""
ZeroToOne = Annotated[float, Range(0, 1)]
"""A number from 0 to 1, the ends included."""

Prompt = Annotated[str, Template()]
"""A template without fields of the worker's own."""

ALIASES: dict[str, Any] = {
    "AboveZeroToOne": AboveZeroToOne,
    "AtLeastOne": AtLeastOne,
    "Count": Count,
    "CountOrZero": CountOrZero,
    "NonNegative": NonNegative,
    "Positive": Positive,
    "Prompt": Prompt,
    "ZeroToOne": ZeroToOne,
}
"""The annotations above by name, for descriptions of options."""
