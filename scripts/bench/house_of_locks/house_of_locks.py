"""A house of many doors. Which room holds the keys of a make of locks is the same for all of them, and nobody says it.

What a door asks for is seen only after a look, and one wrong room loses it. So who knows nothing opens one door in as
many as there are rooms, and who has been told of another door with a lock of the same make opens all. The number on the
key is the door's own, so that what is true of all doors tells the answer of none.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from verl_hier.environments.base import Environment, StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EnvironmentSpec

MAKES = ("kolma", "bruda", "tavik", "serro", "milun", "pagas", "dorin", "vexel", "fundo", "zaret", "wimbo", "lurak")
ROOMS = ("attic", "cellar", "kitchen", "study", "hall", "garden", "barn", "tower")
NUMBERS = tuple(range(10, 100))
SPLITS = ("train", "val")


@dataclass(frozen=True)
class Options:
    """Options of `house_of_locks`."""

    doors: int = 64
    """Doors of a split."""
    makes: int = 8
    """Makes of locks."""
    rooms: int = 5
    """Rooms that may hold the keys of a make."""
    house: int = 0
    """Which house it is: where the keys lie."""
    keys: Literal["house", "door"] = "house"
    """Whether the keys of a make lie in the same room for the whole `house`, or are drawn anew for each `door`."""
    aided: bool = False
    """Whether the world itself says at a look what an agent that reads its library would read there; for
    demonstrations."""
    max_steps: int = 6
    """Actions until an episode is cut off."""


class House(Environment):
    """`look` shows the make of the lock, `fetch MAKE ROOM` gets its key, `turn NUMBER` opens the door."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._task: Mapping[str, Any] = {}
        self._looked = self._fetched = False
        self._count = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._task, self._looked, self._fetched, self._count = task, False, False, 0
        return self._answer("a door")

    def step(self, action: str) -> StepResult:
        self._count += 1
        words = action.split()
        if words == ["look"]:
            self._looked = True
            seen = f"a lock of make {self._task['make']}"
            return self._answer(f"skill: {lesson(self._task)} | {seen}" if self._options.aided else seen)
        if self._looked and words[:2] == ["fetch", self._task["make"]] and words[2:] and words[2] in ROOMS:
            self._fetched = words[2:] == [self._task["room"]]
            if self._fetched:
                return self._answer(f"a key with number {self._task['number']}")
            return self._answer("nothing there", done=True)
        if self._fetched and words[:1] == ["turn"] and len(words) == 2:
            return self._answer("the end", done=True, won=words[1] == str(self._task["number"]))
        return self._answer("that does nothing", valid=False)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        return Expert(self)

    def vocabulary(self) -> Iterable[str]:
        yield " ".join((*MAKES, *ROOMS, *map(str, NUMBERS)))
        yield "look fetch turn a door lock of make key with number nothing there the end that does skill: |"

    def advice(self) -> str:
        """The next action of somebody who knows the house."""
        if not self._looked:
            return "look"
        task = self._task
        return f"turn {task['number']}" if self._fetched else f"fetch {task['make']} {task['room']}"

    def _answer(self, text: str, done: bool = False, won: bool = False, valid: bool = True) -> StepResult:
        state = f"{self._task['door']} {self._looked} {self._fetched} {done}"
        cut = not done and self._count >= self._options.max_steps
        return StepResult(text, float(won), done, cut, valid, anchor=state, info={"won": won})


class Expert:
    """Knows where the keys lie."""

    subgoals = ("open the door",)

    def __init__(self, house: House) -> None:
        self._house = house

    def advise(self, subgoal: int) -> str | None:
        """The next action."""
        return self._house.advice()

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """None: a wrong room would lose the door."""
        return None


def lesson(task: Mapping[str, Any]) -> str:
    """What somebody who has opened a door can tell others."""
    return f"look fetch {task['make']} {task['room']} turn"


def tasks(options: Options, split: str) -> list[dict[str, Any]]:
    """The doors of a split, of each make equally many."""
    rng = random.Random(f"{options.house} {split} {options.doors}")
    where = random.Random(f"house {options.house}")
    rooms = {make: where.choice(ROOMS[: options.rooms]) for make in MAKES}
    made = []
    for number in range(options.doors):
        make = MAKES[number % options.makes]
        room = rooms[make] if options.keys == "house" else rng.choice(ROOMS[: options.rooms])
        door = f"{split} {number}"
        made.append(
            {"instruction": "open the door", "door": door, "make": make, "room": room, "number": rng.choice(NUMBERS)}
        )
    return made


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return EnvironmentSpec(
        "house_of_locks",
        House,
        Options,
        tasks=tasks,
        fork="replay",
        names_states=True,
        info=("won",),
        says_won=True,
        splits=SPLITS,
        pool=lambda options, split: options.doors,
        summary="doors whose keys lie where the keys of other doors lay",
    )
