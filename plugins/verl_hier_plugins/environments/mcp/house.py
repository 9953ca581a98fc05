"""Tasks for the sample server, an item to bring to a room each, and an expert that does them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from verl_hier.environments.splits import hash_number
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.mcp.options import McpOptions

if TYPE_CHECKING:
    from verl_hier_plugins.environments.mcp.environment import McpEnvironment

ITEMS = ("lamp", "book", "cup", "key", "coat", "rope")
ROOMS = ("attic", "cellar", "kitchen", "garden", "hall")
HELD = "your hands"


def house_tasks(options: McpOptions, split: str) -> list[dict[str, Any]]:
    """Tasks of a split, in a fixed order; a hash of the house divides them."""
    size = options.pool if split == "train" else options.validation
    wanted = {"train": range(8), "val": range(8, 9), "test": range(9, 10)}[split]
    found: list[dict[str, Any]] = []
    number = 0
    while len(found) < size:
        if hash_number(f"house-{number}") % 10 in wanted:
            found.append(_task(number, f"{split}-{len(found):05d}"))
        number += 1
    return found


def furnished(number: int) -> dict[str, str]:
    """Where each item of a house is."""
    rng = random.Random(f"house-{number}")
    return {item: rng.choice(ROOMS) for item in ITEMS}


def _task(number: int, name: str) -> dict[str, Any]:
    rng = random.Random(f"task-{number}")
    item = rng.choice(ITEMS)
    room = rng.choice([room for room in ROOMS if room != furnished(number)[item]])
    return {
        "instruction": f"bring {item} to {room}",
        "opening": [{"name": "furnish", "arguments": {"number": number}}],
        "check": {"name": "find", "arguments": {"item": item}, "expect": f"in {room}"},
        "goal": [item, room],
        "data_source": "mcp",
        "id": name,
    }


def words(options: McpOptions) -> Iterable[str]:
    """Texts with every word of the sample server."""
    yield from (f"{item} is in {room}" for item in ITEMS for room in (*ROOMS, HELD))
    yield "there is no lamp ; no lamp in hall ; bring lamp to hall ; find take put answer done"
    yield "no tool was called; there are furnish, find, take, put ; say furnish <number>"


class HouseExpert:
    """Finds the item, takes it and brings it to its room; see `verl_hier.environments.expert.Expert`."""

    def __init__(self, environment: McpEnvironment, rng: random.Random, skip_stage: float, remember: bool) -> None:
        if "goal" not in environment.task:
            raise RecipeError("hier.environment.data_path: the expert knows the tasks of the sample server only.")
        self._environment = environment
        self._remember = remember
        self._item, self._room = environment.task["goal"]
        # The error of demonstrations: to say that it is done without having brought anything.
        skips = rng.random() < skip_stage
        item = self._item
        self.subgoals = (f"find {item}", *(() if skips else (f"bring {item} to {self._room}",)), "answer done")

    def advise(self, subgoal: int) -> str | None:
        """The next call of a subgoal, None when it is reached."""
        goal, place = self.subgoals[subgoal], self._place()
        if goal == "answer done":
            return goal
        if goal.startswith("find"):
            return None if place else f"find {self._item}"
        if not place:
            return f"find {self._item}"
        if place == self._room:
            return None
        return f"put {self._item} {self._room}" if place == HELD else f"take {self._item} {place}"

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """A call for another room or item."""
        return rng.choice((f"take {self._item} {rng.choice(ROOMS)}", f"find {rng.choice(ITEMS)}"))

    def _place(self) -> str:
        """Where the item is, as the server said last; empty while nobody knows."""
        history = self._environment.history
        # A context that starts at this subgoal has the latest answer only.
        for _, said in reversed(history if self._remember else history[-1:]):
            if not said.error and said.text.startswith(f"{self._item} is in "):
                return said.text.removeprefix(f"{self._item} is in ")
        return ""
