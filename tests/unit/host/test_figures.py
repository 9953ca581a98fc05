"""How large each room is. A room that grows past its figure in `figures.yaml` says there why it had to.

python -m tests.unit.host.test_figures    # writes the file as it would be now, without the reasons
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from tests.unit.host.test_layering import UPPER
from verl_hier import hookspecs
from verl_hier.recipe.schema import HierConfig

ROOT = Path(__file__).parents[3]
FIGURES = Path(__file__).with_name("figures.yaml")
ROOM_FOLDERS = {"core": ROOT / "verl_hier", "plugins": ROOT / "plugins" / "verl_hier_plugins"}
SLACK = 1.05
"""How far a figure may lie above what there is, so that a room that has shrunk is noticed."""


def rooms() -> dict[str, dict[str, int]]:
    """Files and lines of Python of each room."""
    found = {}
    for name, folder in ROOM_FOLDERS.items():
        for room in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("_")):
            files = list(room.rglob("*.py"))
            if files:
                floor = "upper" if name == "core" and room.name in UPPER else name
                found[f"{floor}/{room.name}"] = {
                    "files": len(files),
                    "lines": sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files),
                }
    return found


def others() -> dict[str, int]:
    """The hooks, the options of all recipes, and the files of the recipes."""
    return {
        "hooks": len(re.findall(r"^    def hier_", Path(hookspecs.__file__).read_text(encoding="utf-8"), re.MULTILINE)),
        "options of all recipes": options(HierConfig),
        "files of recipes": sum(path.is_file() and path.suffix == ".yaml" for path in (ROOT / "recipes").rglob("*")),
    }


def options(cls: type) -> int:
    """Fields of a dataclass, with those of the dataclasses in it."""
    hints = get_type_hints(cls)
    inner = [[each for each in (hints[f.name], *get_args(hints[f.name])) if is_dataclass(each)] for f in fields(cls)]
    return sum(options(found[0]) if found else 1 for found in inner)  # type: ignore[arg-type]


def recorded() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_is_as_large_as_its_figures(room: str) -> None:
    figures = recorded()["rooms"].get(room)
    assert figures, f"{room} is new: add it to {FIGURES.name} and say why it is there"
    for kind, there in rooms()[room].items():
        assert there <= figures[kind], f"{room} has {there} {kind}: make it smaller, or raise the figure and say why"
        assert figures[kind] <= SLACK * there + 10, f"{room} has shrunk to {there} {kind}: lower the figure"


def test_no_figure_is_of_a_room_that_is_gone() -> None:
    assert set(recorded()["rooms"]) == set(rooms())


@pytest.mark.parametrize("name", sorted(others()))
def test_hooks_options_and_files_are_those_of_the_figures(name: str) -> None:
    assert others()[name] <= recorded()[name], f"there are {others()[name]} {name}: say in {FIGURES.name} why"


if __name__ == "__main__":
    sys.stdout.write(yaml.safe_dump({**others(), "rooms": rooms()}, sort_keys=False))
