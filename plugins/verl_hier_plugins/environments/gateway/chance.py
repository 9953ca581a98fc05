"""What differs between two runs of one program though nothing else does: names that it draws, and what it measures.

A program that is run again on its recorded answers draws new names. Its requests are compared without them; they are
shown with the names of the first run, and answers that quote one of those are given the new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLAIN = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # UUIDs, such as those of Codex's agents
    r"|\b[0-9a-f]{16,64}\b"  # hashes, which may be of a name that is drawn, and names of files with outputs
    r"|\bses_\w{8,40}\b"  # sessions of OpenCode
    r"|\bhome-[0-9a-f]{8}\b|\btmp[a-z0-9_]{8}\b",  # folders of examples/agents, and of Python's tempfile
    re.ASCII,
)
"""Names that are known by their form."""
_GIVEN = re.compile(
    r"(?<=\bagentId: )\w{6,40}\b"  # agents of Claude Code
    r'|(?<="nickname":")[^"\\\n]{3,40}'  # agents of Codex
    r"|(?<=\bsaved to: )\S{6,300}",  # files with outputs that are too long to be shown
    re.ASCII,
)
"""Names that are known by what stands before them once."""
_MEASURED = re.compile(
    r"(?<=\bChunk ID: )[0-9a-f]{6}\b|(?<=\bWall time: )\d+\.\d+|(?<=\bduration_ms: )\d+|(?<=\bPGID: )\d+", re.ASCII
)
_SIGNS = ("agentId: ", '"nickname":"', "saved to: ", "Chunk ID: ", "Wall time: ", "duration_ms: ", "PGID: ")
"""One of these stands in each text in which `_GIVEN` or `_MEASURED` find anything."""
_NAMES = ("ses_", "tmp")
_DIGITS = bytes(ord("0") if chr(code) in "0123456789abcdef" else ord(" ") for code in range(256))
"""One of these names, or eight of these digits, stand in each text in which `_PLAIN` finds anything; most texts have
none."""
_MARK = "\0"
MOST_GIVEN = 64
"""Names that are known by what stands before them; further ones are taken as they are."""


def settled(text: str) -> str:
    """A text with marks in place of what differs between runs."""
    signs = any(sign in text for sign in _SIGNS)
    if signs:
        text = _replaced(text, dict.fromkeys(_GIVEN.findall(text)[:MOST_GIVEN], _MARK))
    digits = text.encode("utf-8", "replace").translate(_DIGITS)
    if b"00000000" in digits or any(name in text for name in _NAMES):
        text = _PLAIN.sub(_MARK, text)
    return _MEASURED.sub(_MARK, text) if signs else text


class DrawnNames:
    """The names of a repeated run, and those of the run that it repeats."""

    def __init__(self) -> None:
        self._first: tuple[dict[str, str], dict[str, str]] = {}, {}
        self._now: tuple[dict[str, str], dict[str, str]] = {}, {}

    def __bool__(self) -> bool:
        return any(self._now)

    def learn(self, first: str, now: str) -> None:
        """Read the names off a text of the first run and the same text now, in the order in which they stand there."""
        for kind, form in enumerate((_PLAIN, _GIVEN)):
            earlier, later = form.findall(first), form.findall(now)
            if len(earlier) == len(later) and earlier != later:
                for one, other in zip(earlier, later, strict=True):
                    if one != other and (kind == 0 or len(self._now[1]) < MOST_GIVEN):
                        self._now[kind].setdefault(one, other)
                        self._first[kind].setdefault(other, one)

    def of_the_first(self, text: str) -> str:
        """A text with the names of the first run."""
        return _renamed(text, *self._first)

    def of_this(self, text: str) -> str:
        """A text of the first run with the names of this one."""
        return _renamed(text, *self._now)


def _renamed(text: str, plain: Mapping[str, str], given: Mapping[str, str]) -> str:
    text = _replaced(text, given)
    return _PLAIN.sub(lambda found: plain.get(found[0], found[0]), text) if plain else text


def _replaced(text: str, names: Mapping[str, str]) -> str:
    """A text with other names, few enough for one pattern of them all."""
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: names[found[0]], text)
