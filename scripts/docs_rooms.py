"""The rooms of the core in the documentation: what is in each, and how they rest on each other."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docs_markdown import cell, table

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "verl_hier"
sys.path.insert(0, str(ROOT))


def rooms() -> Iterator[str]:
    """The rooms of the core: the first sentence of each, and what it may import of ours."""
    from tests.unit.host.test_layering import LAYERS

    rows = []
    for room in sorted(CORE.glob("*/__init__.py")):
        text = " ".join((ast.get_docstring(ast.parse(room.read_text("utf-8"))) or "").split())
        allowed = ", ".join(f"`{name}`" for name in sorted(LAYERS.get(room.parent.name, ())))
        rows.append((f"`{room.parent.name}/`", cell(re.split(r"(?<=\.)\s", text)[0]), allowed or "-"))
    yield from table(("room", "what is in it", "may import"), *rows)


def picture_of_rooms() -> Iterator[str]:
    """The rooms as floors: each rests on rooms below it, of which those are named that none of the others brings."""
    from tests.unit.host.test_layering import reachable, room_graph

    names = {path.parent.name for path in CORE.glob("*/__init__.py")}
    below = {room: others & names for room, others in room_graph().items() if room in names}
    floors: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in floors:
            floors[room] = 1 + max(map(floor, below[room]), default=-1)
        return floors[room]

    width = max(map(len, below)) + 2
    yield "```text"
    for height in range(max(map(floor, below)), -1, -1):
        for place, room in enumerate(sorted(each for each in below if floors[each] == height)):
            through = set().union(*(reachable(below, each) for each in below[room]))
            direct = sorted(below[room] - through, key=lambda each: (-floors[each], each))
            line = f"{height if not place else '':>2}  {room:{width}}{'on ' + ', '.join(direct) if direct else ''}"
            yield line.rstrip()
    yield "```"


BLOCKS = {"rooms": rooms, "picture_of_rooms": picture_of_rooms}
