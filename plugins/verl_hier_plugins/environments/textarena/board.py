"""The boards of TextArena's puzzles as pictures, for `verl-hier view`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

_ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
_SIDE = 34
"""Pixels of a cell."""
_COLOURS = {"P": "#1f6fd6", "G": "#2e9e5b", "H": "#30343b"}
"""Of the player, the goal and holes; other signs stand on white."""


def board(task: dict[str, Any], path: Sequence[dict[str, Any]]) -> str | None:
    """The board that the last turn was shown, as SVG; None for other environments and for games without a grid."""
    if not str(task.get("data_source")).startswith("textarena") or not path:
        return None
    shown = [_rows(message["content"]) for turn in path for message in turn["messages"]]
    last = next((rows for rows in reversed(shown) if rows), None)
    return None if last is None else _svg(last)


def _rows(text: str) -> list[list[str]]:
    """The cells of the grid in a text, `|  P  |     |` a row; empty where there is none."""
    return [[cell.strip() for cell in row.split("|")] for row in _ROW.findall(text)]


def _svg(rows: Sequence[Sequence[str]]) -> str:
    cells = [
        f'<rect x="{x * _SIDE}" y="{y * _SIDE}" width="{_SIDE}" height="{_SIDE}" stroke="#888" '
        f'fill="{_COLOURS.get(cell, "#fff")}"/>'
        f'<text x="{(x + 0.5) * _SIDE}" y="{(y + 0.65) * _SIDE}" text-anchor="middle" font-family="sans-serif" '
        f'fill="{"#fff" if cell in _COLOURS else "#222"}">{escape(cell[:3])}</text>'
        for y, row in enumerate(rows)
        for x, cell in enumerate(row)
    ]
    width, height = _SIDE * max(map(len, rows)), _SIDE * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">{"".join(cells)}</svg>'
    )
