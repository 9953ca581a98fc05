"""The observations of a player: the game's messages, changes of the board, or the board alone in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GAME = -1
"""TextArena's sender number of the game itself."""

LINES_OF_A_BOARD = 3
"""Some games send their board as the description of a move, so messages of this length count as boards as well."""

NOT_POSSIBLE = "not possible"
Message = tuple[int, str, Any]


class Reader:
    """Composes the observations of one player and remembers the boards that were shown.

    Args:
        player: the player's number.
        whole: whether to show whole boards, or only the rows that changed since the last board of that size.
    """

    def __init__(self, player: int, whole: bool) -> None:
        self.player = player
        self._whole = whole
        self._shown: dict[int, tuple[str, ...]] = {}

    def rules(self, messages: Sequence[Message]) -> str:
        """The rules among a player's messages."""
        found = (text for _, text, kind in messages if kind.name == "PROMPT")
        return "\n".join("\n".join(line.strip() for line in text.splitlines()).strip() for text in found)

    def read(self, messages: Sequence[Message]) -> str:
        """The given messages without the rules and without the player's own actions."""
        parts: list[str] = []
        boards: dict[int, int] = {}
        for sender, text, kind in messages:
            lines = text.rstrip().splitlines()
            # One game sends the player's actions under its own number.
            if kind.name == "PROMPT" or (kind.name == "PLAYER_ACTION" and sender in (self.player, GAME)):
                continue
            if kind.name == "PLAYER_ACTION":
                parts.append(f"[Player {sender}] {text}")
            elif kind.name == "GAME_BOARD" or len(lines) >= LINES_OF_A_BOARD:
                if not self._whole and len(lines) in boards:
                    # The board before the moves of the others is superseded by the later one.
                    parts[boards[len(lines)]] = ""
                boards[len(lines)] = len(parts)
                parts.append("\n".join(lines))
            else:
                parts.append(text)
        for place in boards.values():
            parts[place] = self.rows(parts[place].split("\n"), "\n", "[line {}] {}")
        return "\n".join(part for part in parts if part)

    def rows(self, rows: Sequence[str], joint: str = " | ", form: str = "row {} {}") -> str:
        """A board, or its changed rows."""
        before = self._shown.get(len(rows))
        self._shown[len(rows)] = tuple(rows)
        if self._whole or before is None:
            return joint.join(rows)
        changed = (n for n, (was, now) in enumerate(zip(before, rows, strict=True)) if was != now)
        return joint.join(form.format(n, rows[n]) for n in changed)
