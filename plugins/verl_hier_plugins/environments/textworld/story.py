"""The compiled game: what it says to a command in a state of the Z-machine, and which actions it reports.

One interpreter serves all episodes of a game. Their states are snapshots of the machine's memory, which are set before
a command and taken after it, so a fork is a reference.
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
_PROMPT = re.compile(r"\n>[^\n]*-=[^\n]*$|\n>\s*$")
_SPOKEN = re.compile(r"[\w' -]+")
_OUTSIDE = frozenset(
    (
        *("save", "restore", "restart", "quit", "q", "undo", "script", "transcript", "noscript", "unscript"),
        *("verify", "version", "verbose", "brief", "superbrief", "then"),
    )
)
"""Words to the interpreter instead of the world, and `then`, which would make two commands of one."""


@dataclass(frozen=True)
class Answer:
    """What the game said.

    Attributes:
        text: without the tags, the title's lettering, and the prompt with its line of status.
        events: actions that the game reports as done, in its words: `taking the key`.
        snapshot: the machine afterwards.
    """

    text: str
    events: tuple[str, ...]
    snapshot: Snapshot


class Story:
    """A compiled game. Not thread-safe.

    Attributes:
        opening: what it says at the start, with the snapshot there.
    """

    def __init__(self, file: Path) -> None:
        import jericho

        with warnings.catch_warnings():
            # Jericho tells only published games their score and their end; TextWorld's logic does it here.
            warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
            # Zero would mean the time of day.
            self._machine = jericho.FrotzEnv(str(file), seed=1)
        said, _ = self._machine.reset()
        self._machine.step("tw-trace-actions")
        self.opening = Answer(_without_title(clean(said)), (), self._machine.get_state())

    def generate(self, snapshot: Snapshot, command: str) -> Answer:
        """The game's answer to a command, from a snapshot that stays as it is."""
        self._machine.set_state(snapshot)
        said, *_ = self._machine.step(command)
        return Answer(clean(said), events(said), self._machine.get_state())


def spoken(command: str) -> bool:
    """Whether a command is one sentence to the world: no word to the interpreter, no second sentence."""
    words = command.lower().split()
    inside = bool(words) and not any(word in _OUTSIDE or word.startswith("tw-") for word in words)
    return inside and bool(_SPOKEN.fullmatch(command)) and len(command.encode()) <= LONGEST


def events(said: str) -> tuple[str, ...]:
    """Actions among the tags of a traced answer. A tag with brackets is a rule of the game, not an action."""
    tags = (tag.strip()[1:-1] for tag in _TAG.findall(said))
    done = (tag[: tag.index(" - succeeded")] for tag in tags if " - succeeded" in tag)
    return tuple(tag for tag in done if "(" not in tag and ")" not in tag)


def clean(said: str) -> str:
    """An answer without tags and prompt."""
    return _PROMPT.sub("", _TAG.sub("", said).rstrip()).strip("\n")


def _without_title(said: str) -> str:
    """Without the lettering `TEXTWORLD`, twenty lines of dollar signs."""
    lines = said.splitlines()
    first = next((number for number, line in enumerate(lines) if any(map(str.isalnum, line))), 0)
    return "\n".join(lines[first:])
