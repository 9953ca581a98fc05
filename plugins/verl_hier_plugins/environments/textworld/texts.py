"""Short observations for small models: the room, the thing that was used, or the inventory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.environments.textworld.engine import Node, plain

NOTHING_HAPPENS = "nothing happens"
WAYS = ("north", "east", "south", "west")
STATES = ("open", "closed", "locked")
LOOKING = ("go", "look")
USING = ("open", "close", "lock", "unlock", "examine")


class View:
    """A state as the player sees it, in plain words."""

    def __init__(self, node: Node) -> None:
        self._name = lambda variable: plain(node.world.name(variable))
        self._facts: dict[str, list[tuple[Any, ...]]] = {}
        for fact in node.state.facts:
            self._facts.setdefault(fact.name, []).append(tuple(fact.arguments))
        self._room = next((room for who, room in self._held("at") if who.type == "P"), None)

    def room(self) -> str:
        """`attic : coin ; chest closed ; rack : key ; exits east west`."""
        here = sorted((thing for thing, room in self._held("at") if room == self._room and thing.type != "P"), key=str)
        doors = [f"{self.thing(door)} {way}" for way, door in self._doors().items()]
        exits = f"exits {' '.join(self._exits()) or 'none'}"
        parts = [*(self.thing(thing) for thing in here), *doors, exits]
        return f"{self._name(self._room)} : {' ; '.join(parts)}" if self._room is not None else exits

    def thing(self, thing: Any) -> str:
        """`chest open : coin key`, `rack : nothing`, `door locked`, `coin`."""
        state = " ".join(state for state in STATES if (thing,) in self._held(state))
        said = f"{self._name(thing)} {state}".strip()
        if thing.type == "s" or (thing.type == "c" and state == "open"):
            return f"{said} : {self._list(thing)}"
        return said

    def carried(self) -> str:
        """`carry : key ; coin`."""
        held = [thing for thing, where in self._held("in") if where.type == "I"]
        return f"carry : {self._names(held)}"

    def _held(self, name: str) -> list[tuple[Any, ...]]:
        return self._facts.get(name, [])

    def _list(self, holder: Any) -> str:
        return self._names(thing for name in ("in", "on") for thing, where in self._held(name) if where == holder)

    def _names(self, things: Iterable[Any]) -> str:
        return " ; ".join(sorted(map(self._name, things))) or "nothing"

    def _exits(self) -> list[str]:
        free = {there for here, there in self._held("free") if here == self._room}
        return [way for way in WAYS if any(here == self._room and there in free for there, here in self._beyond(way))]

    def _beyond(self, way: str) -> list[tuple[Any, ...]]:
        """Pairs of rooms (there, here) with `there` in a direction; TextWorld states north and west only."""
        opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}[way]
        return [*self._held(f"{way}_of"), *((there, here) for here, there in self._held(f"{opposite}_of"))]

    def _doors(self) -> dict[str, Any]:
        """Way to door."""
        links = {(here, there): door for here, door, there in self._held("link")}
        return {
            way: links[here, there]
            for way in WAYS
            for there, here in self._beyond(way)
            if here == self._room and (here, there) in links
        }


def describe(node: Node, action: Any = None) -> str:
    """The short observation after an action, or at the start.

    Args:
        node: the new state.
        action: TextWorld's action that led to it; None at the start.
    """
    view, verb = View(node), "look" if action is None else action.name.partition("/")[0]
    if verb in LOOKING:
        return view.room()
    if verb in USING:
        fixed = [variable for variable in action.variables if variable.type in ("c", "d", "s")]
        things = fixed or [variable for variable in action.variables if variable.type not in ("P", "I", "r")]
        return view.thing(things[0]) if things else view.room()
    return view.carried()
