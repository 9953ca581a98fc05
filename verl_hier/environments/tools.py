"""What an environment in the rollout worker is given there: the tools of the training framework, as a protocol.

Nothing here knows verl; `chat.tools` makes it from verl's own tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TOOL_REWARDS = "tool_rewards"
"""What the tools gave for the calls of a turn: a list in the `info` of a step, its JSON in the `extra` of the turn."""


@dataclass(frozen=True)
class Said:
    """A turn as the tool parser reads it.

    Attributes:
        message: the turn as chat templates read it: `role`, `content`, and `tool_calls` where there are any.
        calls: name and arguments (JSON) of each call that is made.
        left_out: calls beyond those that one turn may make.
        broken: whether a call was begun, and the parser reads none.
    """

    message: Mapping[str, Any]
    calls: tuple[tuple[str, str], ...]
    left_out: int = 0
    broken: bool = False


@dataclass(frozen=True)
class Told:
    """What the calls of a turn were answered.

    Attributes:
        messages: a message for each call, as chat templates read it.
        rewards: the rewards of the tools that gave one, in order.
    """

    messages: tuple[Mapping[str, Any], ...]
    rewards: tuple[float, ...]


class ToolSession(Protocol):
    """The tools of one episode.

    Attributes:
        schemas: JSON schemas of the tools that the row of the data set allows.
        names: their names.
        stop_tokens: token ids that have to end a turn so that the parser can read it.
        most_turns: turns of the agent after which the episode ends, None for any number.
        most_answers: turns whose calls are answered, None for any number.
        keeps: whether the tools have noted something about the episode, which later calls may read.
    """

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def stop_tokens(self) -> Sequence[int]: ...
    @property
    def most_turns(self) -> int | None: ...
    @property
    def most_answers(self) -> int | None: ...

    @property
    def keeps(self) -> bool: ...

    async def parse(self, turn: str | Sequence[int]) -> Said:
        """Read a turn, as its tokens or as its text."""

    async def call(self, said: Said, known: Sequence[Mapping[str, Any] | None] = ()) -> Told:
        """Make the calls of the turn that was read last, side by side; an error of a tool is a text like any other.

        Args:
            said: the turn.
            known: for each call its recorded answer, with which it is not made; None to make it. Empty: make them all.
        """


class Tools(Protocol):
    """The tools of a run.

    Attributes:
        names: of all of them.
    """

    @property
    def names(self) -> Sequence[str]: ...

    def session(self, task: Mapping[str, Any]) -> ToolSession:
        """The tools for a new episode of a row of the data set.

        Raises:
            RecipeError: when the row cannot be used.
        """


_TOKENS = '{"tokens": ['
_LARGEST_TOKEN = 2**31 - 1


def action_of(tokens: Sequence[int]) -> str:
    """The action of an environment with tools for the exact tokens of a turn."""
    return json.dumps({"tokens": list(tokens)})


def turn_of(action: str) -> str | list[int]:
    """The turn that an action stands for: its tokens, or the text that a worker without `ToolUse` gives."""
    if not action.startswith(_TOKENS):
        return action
    try:
        tokens = json.loads(action)["tokens"]
    except (ValueError, RecursionError):
        return action
    # A policy may write this as its text, with anything in it.
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token <= _LARGEST_TOKEN for token in tokens):
        return action
    return tokens
