"""Which goals of a compound task hold in a state. The engine decides `won`; this counts the parts."""

from __future__ import annotations

from pathlib import Path

from verl_hier.errors import FileError
from verl_hier.graph.bounded_reading import MIB, read_json
from verl_hier_plugins.environments.alfworld.engine import Facts, Node
from verl_hier_plugins.environments.alfworld.world import GOALS, Goal

KINDS = {name: kind for kind, name in GOALS.items()}
LARGEST_FILE = 16 * MIB
"""Bytes of a file of a game; those of ALFWorld's data set have less than one."""
PROOFS = {"clean": "isclean", "heat": "ishot", "cool": "iscool"}
"""Goal type to the predicate that its object must satisfy."""


def goals_done(goals: tuple[Goal, ...], node: Node) -> int:
    """The number of goals that hold."""
    return sum(holds(goal, node.facts) for goal in goals)


def holds(goal: Goal, facts: Facts) -> bool:
    """Whether one goal holds by the facts, as ALFWorld's PDDL goal of its type defines it."""
    items = of_type(facts, "objecttype", goal.item)
    if goal.kind == "look":
        return held_item(facts) in items and _under_light(goal, facts)
    proof = PROOFS.get(goal.kind)
    fit = items if proof is None else {i for i in items if (i,) in facts.get(proof, ())}
    targets = of_type(facts, "receptacletype", goal.target)
    needed = 2 if goal.kind == "two" else 1
    inside = [(i, r) for i, r in facts.get("inreceptacle", ()) if i in fit and r in targets]
    return any(sum(place == r for _, place in inside) >= needed for r in targets)


def _under_light(goal: Goal, facts: Facts) -> bool:
    here = {location for _, location in facts.get("atlocation", ())}
    near = {r for r, location in facts.get("receptacleatlocation", ()) if location in here}
    lamps = of_type(facts, "objecttype", goal.target)
    lit = {lamp for (lamp,) in facts.get("istoggled", ())} & lamps
    return any(lamp in lit and r in near for lamp, r in facts.get("inreceptacle", ()))


def of_type(facts: Facts, predicate: str, kind: str) -> set[str]:
    """Entities of a type: `objecttype` or `receptacletype`."""
    wanted = f"{kind.lower()}type"
    return {name for name, named in facts.get(predicate, ()) if named == wanted}


def held_item(facts: Facts) -> str | None:
    """The object in the agent's hand."""
    return next((item for _, item in facts.get("holds", ())), None)


def goals_of_file(game: Path) -> tuple[Goal, ...]:
    """The goal of a data set game, from the `traj_data.json` beside it; empty when there is none."""
    described = game.with_name("traj_data.json")
    if not described.is_file():
        return ()
    data = read_json(described, LARGEST_FILE)
    wanted = data.get("pddl_params") if isinstance(data, dict) else None
    kind = KINDS.get(str(data.get("task_type"))) if isinstance(wanted, dict) else None
    if kind is None or not isinstance(wanted, dict):
        return ()
    item = wanted.get("object_target")
    target = wanted.get("toggle_target") if kind == "look" else wanted.get("parent_target")
    if not isinstance(item, str) or not isinstance(target, str):
        raise FileError(f"{described} does not name the object and the place of its goal in `pddl_params`.")
    return (Goal(kind, item, target),)
