"""Generated worlds: a kitchen-like room of ALFWorld receptacles and objects, and goals that can be reached.

A world is a pure function of its parameters (a seed and sizes), so a task consists of a few numbers. ALFWorld's own
tables decide what may stand where and what can be cleaned, heated or cooled; the goals are ALFWorld's PDDL goals,
joined by `and` when a task has several.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.splits import hash_number

GOALS = {
    "pick": "pick_and_place_simple",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "look": "look_at_obj_in_light",
    "two": "pick_two_obj_and_place",
}
"""Short goal type to ALFWorld's name of it."""

STAGES = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
"""Goal type to the appliance that it needs."""

APPLIANCES = ("Fridge", "Microwave", "SinkBasin")
FURNITURE = (
    *("Cabinet", "CounterTop", "DiningTable", "Drawer", "GarbageCan"),
    *("Shelf", "SideTable", "Dresser", "CoffeeTable", "Desk"),
)
OPENABLE = frozenset({"Fridge", "Microwave", "Cabinet", "Drawer"})
OBJECTS = (
    *("Apple", "Bowl", "Bread", "Cup", "DishSponge", "Egg", "Fork", "Lettuce", "Mug", "Pan", "Plate", "Pot", "Potato"),
    *("SaltShaker", "SoapBottle", "Spatula", "Spoon", "Tomato"),
)
LAMP = "DeskLamp"
MOST_OF_A_KIND = 3
"""Objects of one type in a room at most, as in ALFWorld's own rooms."""

LAMP_STANDS = ("CounterTop", "DiningTable", "Shelf", "SideTable", "Dresser", "CoffeeTable", "Desk")


@dataclass(frozen=True)
class Goal:
    """One goal: its type, the object type, and the receptacle type (the lamp's type for `look`)."""

    kind: str
    item: str
    target: str


@dataclass(frozen=True)
class World:
    """A room and its goals.

    Attributes:
        receptacles: PDDL name and type of each.
        placed: PDDL name, type and receptacle of each object.
        goals: the conditions of the final state.
        instruction: the task sentence.
    """

    receptacles: tuple[tuple[str, str], ...]
    placed: tuple[tuple[str, str, str], ...]
    goals: tuple[Goal, ...]
    instruction: str

    @property
    def room(self) -> str:
        """The receptacles by type; `valid_unseen` holds out whole rooms."""
        return ",".join(sorted(kind for _, kind in self.receptacles))

    @property
    def fingerprint(self) -> str:
        """Equal for worlds with equal room, contents and goals."""
        where = dict(self.receptacles)
        inside = sorted(f"{kind}@{place}:{where[place]}" for _, kind, place in self.placed)
        asked = [f"{g.kind}:{g.item}:{g.target}" for g in self.goals]
        return "|".join((self.room, *inside, *asked))


def split_of(world: World) -> str:
    """The split of a world: one room in five is held out, and one in five of the worlds in the other rooms.

    Splits are therefore disjoint, whatever their sizes and seeds.
    """
    if hash_number(world.room) % 5 == 0:
        return "valid_unseen"
    return "valid_seen" if hash_number(world.fingerprint) % 5 == 0 else "train"


def build_world(parameters: Mapping[str, Any]) -> World:
    """The world of a task's `world` block: `seed`, `kinds` (goal types), `receptacles`, `objects`."""
    rng = random.Random(f"world-{parameters['seed']}")
    kinds = list(parameters["kinds"])
    while True:
        # Some rooms offer no place for a goal; then the same generator draws again.
        world = _draw(rng, kinds, int(parameters["receptacles"]), int(parameters["objects"]))
        if world is not None:
            return world


def _draw(rng: random.Random, kinds: list[str], receptacles: int, objects: int) -> World | None:
    rooms = _room(rng, receptacles, lamp="look" in kinds)
    holds = _capacity()
    goals: list[Goal] = []
    for kind in kinds:
        goal = _goal(rng, kind, rooms, holds, {g.item for g in goals})
        if goal is None:
            return None
        goals.append(goal)
    placed: list[tuple[str, str]] = []
    for goal in goals:
        targets = () if goal.kind == "look" else (goal.target,)
        for _ in range(2 if goal.kind == "two" else 1):
            spot = _spot(rng, goal.item, rooms, holds, avoid=targets)
            if spot is None:
                return None
            placed.append((goal.item, spot))
    if "look" in kinds:
        stands = [name for name, kind in rooms if kind in LAMP_STANDS]
        placed.append((LAMP, rng.choice(stands)))
    spare = [o for o in OBJECTS if o not in {g.item for g in goals} for _ in range(MOST_OF_A_KIND)]
    rng.shuffle(spare)
    while len(placed) < objects and spare:
        item = spare.pop()
        spot = _spot(rng, item, rooms, holds)
        if spot is not None:
            placed.append((item, spot))
    return World(tuple(rooms), _named(placed), tuple(goals), _sentence(rng, goals))


def _room(rng: random.Random, size: int, lamp: bool) -> list[tuple[str, str]]:
    kinds = list(APPLIANCES)
    if lamp:
        kinds.append(rng.choice(LAMP_STANDS))
    spare = [kind for kind in FURNITURE if kind not in kinds]
    rng.shuffle(spare)
    kinds += spare[: max(0, min(size, 12) - len(kinds))]
    while len(kinds) < size:
        kinds.append(rng.choice(FURNITURE))
    count: Counter[str] = Counter()
    named = []
    for kind in sorted(kinds):
        count[kind] += 1
        named.append((_name(kind, count[kind]), kind))
    return named


def _name(kind: str, number: int) -> str:
    """A PDDL name in the form that ALFWorld's demangler parses; a basin belongs to a sink."""
    if kind == "SinkBasin":
        return f"Sink_bar_{number}_bar_SinkBasin"
    return f"{kind}_bar_{number}"


def _named(placed: list[tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    count: Counter[str] = Counter()
    named = []
    for item, spot in placed:
        count[item] += 1
        named.append((_name(item, count[item]), item, spot))
    return tuple(named)


def _capacity() -> dict[str, set[str]]:
    """Receptacle type to the object types that it may hold, from ALFWorld's table."""
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS

    return {kind: set(VAL_RECEPTACLE_OBJECTS[kind]) for kind in (*APPLIANCES, *FURNITURE)}


def changeable() -> dict[str, set[str]]:
    """Goal type to the objects that can be cleaned, heated or cooled, from ALFWorld's table."""
    from alfworld.gen.constants import VAL_ACTION_OBJECTS

    return {
        "clean": set(VAL_ACTION_OBJECTS["Cleanable"]),
        "heat": set(VAL_ACTION_OBJECTS["Heatable"]),
        "cool": set(VAL_ACTION_OBJECTS["Coolable"]),
    }


def _goal(
    rng: random.Random, kind: str, room: list[tuple[str, str]], holds: dict[str, set[str]], taken: set[str]
) -> Goal | None:
    able = changeable().get(kind)
    items = [o for o in OBJECTS if o not in taken and (able is None or o in able)]
    if kind == "look":
        return Goal(kind, rng.choice(items), LAMP)
    stage = STAGES.get(kind)
    kinds = sorted({k for _, k in room})
    pairs = [(o, k) for o in items for k in kinds if o in holds[k] and k != stage]
    # The item is drawn before its target; otherwise objects that fit everywhere would dominate.
    if not pairs:
        return None
    item = rng.choice(sorted({o for o, _ in pairs}))
    return Goal(kind, item, rng.choice([k for o, k in pairs if o == item]))


def _spot(
    rng: random.Random,
    item: str,
    room: list[tuple[str, str]],
    holds: dict[str, set[str]],
    avoid: tuple[str, ...] = (),
) -> str | None:
    spots = [name for name, kind in room if item in holds[kind] and kind not in avoid]
    return rng.choice(spots) if spots else None


def _sentence(rng: random.Random, goals: list[Goal]) -> str:
    """ALFWorld's own templates, joined: `put a hot apple in fridge then put some mug on shelf`."""
    from alfworld.gen.goal_library import gdict

    parts = []
    for goal in goals:
        template = rng.choice(gdict[GOALS[goal.kind]]["templates"])
        target = goal.target.lower()
        parts.append(template.format(obj=goal.item.lower(), recep=target, toggle=target, mrecep=""))
    return " then ".join(parts)


def names(receptacles: int) -> list[str]:
    """All names of entities in generated worlds with so many receptacles."""
    most = 1 + max(0, receptacles - len(APPLIANCES) - len(FURNITURE))
    found = [f"{kind} 1" for kind in (*APPLIANCES, LAMP)]
    found += [f"{kind} {i + 1}" for kind in FURNITURE for i in range(most)]
    found += [f"{kind} {i + 1}" for kind in OBJECTS for i in range(MOST_OF_A_KIND)]
    return [name.lower() for name in found]
