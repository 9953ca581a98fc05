"""What differs between two runs of one program though nothing else does: names that it draws, and what it measures.

A program that is run again on its recorded answers draws new names. Its requests are compared without them; they are
shown with the names of the first run, and answers that quote one of those are given the new one.
"""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # UUIDs, such as those of Codex's agents
    r"|\bses_\w{8,40}\b"  # sessions of OpenCode
    r"|\bhome-[0-9a-f]{8}\b|\btmp[a-z0-9_]{8}\b"  # folders of examples/agents, and of Python's tempfile
    r"|(?<=\bagentId: )\w{6,40}\b"  # agents of Claude Code
    r'|(?<="nickname":")[^"\\\n]{3,40}',  # agents of Codex
    re.ASCII,
)
_MEASURED = re.compile(
    r"(?<=\bChunk ID: )[0-9a-f]{6}\b|(?<=\bWall time: )\d+\.\d+|(?<=\bduration_ms: )\d+|(?<=\bPGID: )\d+", re.ASCII
)
_MARK = "\0"


def settled(text: str) -> str:
    """A text with marks in place of what differs between runs."""
    names = dict.fromkeys(_NAMES.findall(text), _MARK)
    return _MEASURED.sub(_MARK, _renamed(text, names))


class DrawnNames:
    """The names of a repeated run, and those of the run that it repeats."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def learn(self, first: str, now: str) -> None:
        """Read the names off a text of the first run and the same text now, in the order in which they stand there."""
        names = _NAMES.findall(first), _NAMES.findall(now)
        if len(names[0]) == len(names[1]):
            for earlier, later in zip(*names, strict=True):
                if earlier != later:
                    self._first.setdefault(later, earlier)
                    self._now.setdefault(earlier, later)

    def of_the_first(self, text: str) -> str:
        """A text with the names of the first run."""
        return _renamed(text, self._first)

    def of_this(self, text: str) -> str:
        """A text of the first run with the names of this one."""
        return _renamed(text, self._now)


def _renamed(text: str, names: dict[str, str]) -> str:
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: names[found[0]], text)
