"""The compiled game: its answer to a command in a state of the Z-machine, and the actions that it reports.

One interpreter serves all episodes of a game. Their states are snapshots of its memory, which are restored before a
command and taken after it, so a fork is a reference.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Snapshot = tuple[Any, ...]

LONGEST = 190
"""Bytes of a command that the interpreter's buffer holds, with some to spare."""

_TAG = re.compile(r"\[[^]]+\]\n?")
_SENTENCE = re.compile(r"[\w' -]+")
_INTERPRETER_WORDS = frozenset(
    (
        *("save", "restore", "restart", "quit", "q", "undo", "script", "transcript", "noscript", "unscript"),
        *("verify", "version", "verbose", "brief", "superbrief", "then"),
    )
)
"""Commands to the interpreter instead of the game, and `then`, which joins two commands."""


@dataclass(frozen=True)
class Answer:
    """An answer of the game.

    Attributes:
        text: the answer without tags, title lettering, prompt and status line.
        events: the actions that the game reports as done: `taking the key`.
        snapshot: the state of the machine afterwards.
    """

    text: str
    events: tuple[str, ...]
    snapshot: Snapshot


class Story:
    """A compiled game. Not thread-safe.

    Attributes:
        opening: the text and the snapshot at the start.
    """

    def __init__(self, file: Path) -> None:
        import jericho

        with warnings.catch_warnings():
            # Jericho knows the score and the end of published games only; here TextWorld's logic decides both.
            warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
            # A seed of 0 would mean the time of day.
            self._machine = jericho.FrotzEnv(str(file), seed=1)
        said, _ = self._machine.reset()
        self._machine.step("tw-trace-actions")
        self.opening = Answer(_without_title(clean(said)), (), self._machine.get_state())

    def answer(self, snapshot: Snapshot, command: str) -> Answer:
        """The game's answer to a command in the state of a snapshot."""
        self._machine.set_state(snapshot)
        said, *_ = self._machine.step(command)
        return Answer(clean(said), events(said), self._machine.get_state())


def is_game_command(command: str) -> bool:
    """Whether a command is one sentence to the game, without a command to the interpreter."""
    words = command.lower().split()
    inside = bool(words) and not any(word in _INTERPRETER_WORDS or word.startswith("tw-") for word in words)
    return inside and bool(_SENTENCE.fullmatch(command)) and len(command.encode()) <= LONGEST


def events(said: str) -> tuple[str, ...]:
    """Actions among the tags of a traced answer. A tag with parentheses is a rule of the game, not an action."""
    tags = (tag.strip()[1:-1] for tag in _TAG.findall(said[: _tags_end(said)]))
    done = (tag[: tag.index(" - succeeded")] for tag in tags if " - succeeded" in tag)
    return tuple(tag for tag in done if "(" not in tag and ")" not in tag)


def clean(said: str) -> str:
    """An answer without tags and prompt. The prompt is the last line, with the status line where there is one."""
    end = _tags_end(said)
    text = (_TAG.sub("", said[:end]) + said[end:]).rstrip()
    above, newline, last = text.rpartition("\n")
    prompted = newline and last.startswith(">") and (last == ">" or "-=" in last)
    return (above if prompted else text).strip("\n")


def _tags_end(said: str) -> int:
    """Where the last tag ends: behind it, each bracket would be searched for an end that is not there."""
    end = said.rfind("]") + 1
    return end + said.startswith("\n", end) if end else 0


def _without_title(said: str) -> str:
    """Remove the lettering `TEXTWORLD`, twenty lines of dollar signs."""
    lines = said.splitlines()
    first = next((number for number, line in enumerate(lines) if any(map(str.isalnum, line))), 0)
    return "\n".join(lines[first:])
