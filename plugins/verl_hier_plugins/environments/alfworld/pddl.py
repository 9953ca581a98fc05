"""A generated world in the form of ALFWorld's game files: PDDL domain, text grammar, PDDL problem."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from verl_hier_plugins.environments.alfworld.world import (
    APPLIANCES,
    FURNITURE,
    GOALS,
    LAMP,
    OPENABLE,
    Goal,
    World,
    changeable,
)

TYPES_IN_DOMAIN = ("KnifeType", "ButterKnifeType")
"""Object types that the domain's actions mention, so every problem has to declare them."""


@functools.lru_cache(maxsize=1)
def domain_and_grammar() -> tuple[str, str]:
    """ALFWorld's PDDL domain and text grammar, as shipped."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    return Path(ALFRED_PDDL_PATH).read_text(), Path(ALFRED_TWL2_PATH).read_text()


def game_data(world: World) -> dict[str, Any]:
    """The content of a `game.tw-pddl` file for this world, for TextWorld and for `engine.Game`."""
    domain, grammar = domain_and_grammar()
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", world.instruction),
        "pddl_problem": problem(world),
        "solvable": True,
        "walkthrough": None,
    }


def problem(world: World) -> str:
    """The PDDL problem of a world. Every receptacle has its own location."""
    where = {name: f"loc_bar_{i + 1}" for i, (name, _) in enumerate(world.receptacles)}
    items = sorted({kind for _, kind, _ in world.placed})
    kinds = sorted({*APPLIANCES, *(kind for _, kind in world.receptacles)})
    objects = [
        "agent1 - agent",
        *(f"{name} - object" for name, _, _ in world.placed),
        *(f"{name} - receptacle" for name, _ in world.receptacles),
        "loc_bar_0 - location",
        *(f"{place} - location" for place in where.values()),
        *(f"{kind}Type - otype" for kind in items),
        *(f"{kind} - otype" for kind in TYPES_IN_DOMAIN),
        *(f"{kind}Type - rtype" for kind in kinds),
    ]
    facts = [*_receptacle_facts(world, where), *_object_facts(world, where)]
    return "\n".join(
        (
            "(define (problem generated)",
            "(:domain alfred)",
            "(:objects",
            *objects,
            ")",
            "(:init",
            "(= (total-cost) 0)",
            "(atLocation agent1 loc_bar_0)",
            *facts,
            ")",
            _goals(world.goals),
            "(:metric minimize (total-cost))",
            ")",
        )
    )


def _receptacle_facts(world: World, where: dict[str, str]) -> list[str]:
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS

    facts = []
    items = sorted({kind for _, kind, _ in world.placed})
    for name, kind in world.receptacles:
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {where[name]})"]
        if kind in OPENABLE:
            facts.append(f"(openable {name})")
    for kind in sorted({kind for _, kind in world.receptacles} & {*APPLIANCES, *FURNITURE}):
        facts += [f"(canContain {kind}Type {item}Type)" for item in items if item in VAL_RECEPTACLE_OBJECTS[kind]]
    return facts


def _object_facts(world: World, where: dict[str, str]) -> list[str]:
    able = changeable()
    facts = []
    for name, kind, place in world.placed:
        facts += [
            f"(objectType {name} {kind}Type)",
            f"(inReceptacle {name} {place})",
            f"(objectAtLocation {name} {where[place]})",
        ]
        if kind == LAMP:
            facts.append(f"(toggleable {name})")
            continue
        facts.append(f"(pickupable {name})")
        facts += [
            f"({predicate} {name})"
            for predicate, goal in (("cleanable", "clean"), ("heatable", "heat"), ("coolable", "cool"))
            if kind in able[goal]
        ]
    return facts


def _goals(goals: tuple[Goal, ...]) -> str:
    """`(:goal (and …))` over ALFWorld's own goal of each type, with the variables of each kept apart by `exists`."""
    from alfworld.gen.goal_library import gdict

    parts = []
    for goal in goals:
        text = gdict[GOALS[goal.kind]]["pddl"].replace("#", "-")
        text = text.format(obj=goal.item, recep=goal.target, toggle=goal.target, mrecep="")
        found = re.search(r"\(:goal(.*)\)\s*\)\s*$", text, re.DOTALL)
        assert found is not None, f"ALFWorld's goal of {goal.kind} changed its shape"
        parts.append(found.group(1).strip())
    return "(:goal (and\n" + "\n".join(parts) + "\n))"
