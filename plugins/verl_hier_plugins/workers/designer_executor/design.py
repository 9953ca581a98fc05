"""A design: the meaning of a script or graph that was read and found valid.

Plain data: `script.py` and `graph.py` read it, `execution.py` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Sharing = Literal["own", "kept", "shared"]
Block = Literal["call", "self_consistency", "reflexion", "debate"]

ACT = "act"
"""The tool for every action of the environment."""


class DesignError(Exception):
    """Why a script was refused.

    Attributes:
        name: one of `FAILURES`; it is counted.
        line: 1-based line of the script, 0 when it has none.
    """

    def __init__(self, name: str, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.name = name
        self.line = line


OF_GRAPHS = {
    "unknown_agent": "an edge of a graph begins or ends at an agent that is not there",
    "doubled_agent": "two agents of a graph have one name",
    "sides": "the sides of a debate are no list of at least two names of at least two letters",
    "unconnected": "a graph of several agents has no edges, or agents that do not lead to its answer",
    "many_ends": "more than one agent of a graph leads to no other one, so that its answer is not clear",
    "cycle": "agents of a graph wait for each other",
}
"""What can be wrong with a graph alone."""
FAILURES: dict[str, str] = {
    "missing": "the tag that should hold the script is not there, or not closed",
    "cut": "the turn reached its token limit",
    "too_long": "more than `max_bytes`, or more than 4000 words and signs",
    "syntax": "it cannot be read at all",
    "too_deep": "blocks in blocks beyond a depth of 12",
    "import": "it imports something",
    "function": "it defines a function, a class or a lambda",
    "recursion": "a function calls itself, or the script calls the designer",
    "unbounded_loop": "`while`, or a `for` over anything but `range(NUMBER)`",
    "too_many_steps": "more than `max_steps` calls in the worst case",
    "too_many_roles": "it defines more than `max_roles` roles",
    "bad_role": "a role is defined with a wrong, reserved or used name, or with a wrong option",
    "unknown_role": "it calls a role that is not defined",
    "unknown_tool": "it gives a role a tool that the recipe does not have",
    "unknown_name": "it reads a text that no role has written",
    "forbidden": "anything else that the language does not have",
    "empty": "it calls no role",
    **OF_GRAPHS,
}
"""What can be wrong with a design; each name is counted as `design_<name>`."""


@dataclass(frozen=True)
class Role:
    """An executor's job.

    Attributes:
        name: its name in the script; the agent of its turns.
        brief: description of its job.
        tools: `act`, or first words of actions; empty for a role that only writes.
        context: `own` is new for each call, `kept` lasts from call to call, `shared` is one for all roles with this
            value.
        turns: limit of turns in one call, None for the recipe's.
        block: how a call of it is done; see `blocks.py`.
    """

    name: str
    brief: str = ""
    tools: tuple[str, ...] = ()
    context: Sharing = "own"
    turns: int | None = None
    block: Block = "call"


@dataclass(frozen=True)
class TextOf:
    """The last text of a role, or the text that was assigned to a name."""

    name: str


@dataclass(frozen=True)
class Call:
    """A role's turn or turns.

    Attributes:
        role: its name.
        order: its task: literal texts and texts of others, one after the other.
        result: name that its text is assigned to, or None.
        sides: who debates, where the design says so and the role is a debate.
    """

    role: str
    order: tuple[str | TextOf, ...] = ()
    result: str | None = None
    sides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loop:
    """`body`, `times` times; `name` counts from 0."""

    name: str
    times: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Choice:
    """`then` when `text` is in (`negated`: is not in) the text of `name`, else `otherwise`. Case does not matter."""

    text: str
    name: str
    negated: bool
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Leave:
    """End of the innermost loop, or of the whole execution."""

    what: Literal["loop", "execution"]


Statement = Call | Loop | Choice | Leave


@dataclass(frozen=True)
class Design:
    """A valid script.

    Attributes:
        roles: by name, those of the recipe included.
        body: its statements, in order.
        steps: calls in the worst case.
    """

    roles: Mapping[str, Role]
    body: tuple[Statement, ...]
    steps: int
