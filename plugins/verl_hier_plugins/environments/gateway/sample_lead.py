"""The sample agent with sub-agents: a lead sends helpers into the rooms of a house, and each looks and reports.

The lead sees no room itself, so whether it finds the thing depends on how its helpers look. Each helper has a
conversation of its own, which the call of the lead began; see docs/environments/gateway.md.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_hier_plugins.environments.gateway.sample import ANSWER, LOOK, ROOMS, THINGS, HouseExpert, ask

PLACES = ("shelf", "box")
"""In every room."""
SEND, REPORT, NOTHING = "send", "report", "nothing"
_ROOM = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}
_TOOL = {"name": SEND, "description": "Sends a helper into a room, who reports what is there.", "parameters": _ROOM}


def play(task: Mapping[str, Any]) -> str:
    """Do a task: `instruction`, and `rooms` with what is on the places of each. Returns the policy's answer, a room."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": opening(task)}]
    while True:
        said = ask(messages, tools=[{"type": "function", "function": _TOOL}])
        messages.append(said)
        calls = said.get("tool_calls")
        if not calls:
            return str(said["content"]).strip().removeprefix(f"{ANSWER} ")
        for call in calls:
            room = json.loads(call["function"]["arguments"]).get("room", "")
            found = help_with(task, str(room).strip())
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})


def help_with(task: Mapping[str, Any], room: str) -> str:
    """What the lead is told of a room: what the helper says who was sent there."""
    places = task["rooms"].get(room)
    if places is None:
        return "there is no such room"
    messages: list[dict[str, Any]] = [{"role": "user", "content": errand(task, room)}]
    while True:
        said = ask(messages)
        messages.append(said)
        word, _, rest = said["content"].strip().partition(" ")
        if word != LOOK:
            return told(room, rest if word == REPORT else NOTHING)
        messages.append({"role": "user", "content": seen(places, rest.strip())})


def opening(task: Mapping[str, Any]) -> str:
    """What the lead is asked."""
    return f"{task['instruction']} ; {ANSWER} one of {' '.join(task['rooms'])}"


def errand(task: Mapping[str, Any], room: str) -> str:
    """What a helper is asked. The room is a line of its own, by which the call of the lead is known."""
    return f"{task['instruction']} in\n{room}\n; say {LOOK} and one of {' '.join(PLACES)} or {REPORT}"


def seen(places: Mapping[str, str], place: str) -> str:
    """What is on a place."""
    return f"on {place} is {places[place]}" if place in places else "there is no such place"


def told(room: str, thing: str) -> str:
    """What the lead is told of a report."""
    return f"in {room} is {thing}"


def house(number: int) -> tuple[dict[str, Any], str, str]:
    """What is on the places of the rooms of a house, the thing that is looked for, and its room."""
    rng = random.Random(f"house-of-helpers-{number}")
    rooms, things = rng.sample(ROOMS, 3), iter(rng.sample(THINGS, 3 * len(PLACES)))
    placed = {room: {place: next(things) for place in PLACES} for room in rooms}
    room, place = rng.choice(rooms), rng.choice(PLACES)
    return placed, placed[room][place], room


def words() -> Iterable[str]:
    """Texts with every word of the lead and its helpers."""
    house = {"instruction": "find lamp", "rooms": {room: {} for room in ROOMS}}
    yield f"{opening(house)} ; You can say {SEND} <room>."
    yield errand(house, "hall")
    yield from (seen({place: thing}, place) for place in PLACES for thing in THINGS)
    yield from (told(room, NOTHING) for room in ROOMS)
    yield "there is no such room place"


class HelpedExpert(HouseExpert):
    """Sends a helper into one room after the other, who looks until the thing is seen."""

    def _next(self, texts: Sequence[str]) -> str:
        known, seen = _heard(texts)
        if seen is not None:
            unseen = [place for place in PLACES if place not in seen]
            here = self._thing in seen.values()
            return f"{LOOK} {unseen[0]}" if unseen and not here else f"{REPORT} {self._thing if here else NOTHING}"
        rooms = self._environment.task["rooms"]
        found = next((room for room in rooms if known.get(room) == self._thing), None)
        return f"{ANSWER} {found}" if found else f"{SEND} {next((room for room in rooms if room not in known), '')}"

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """To send a helper anywhere, or to look anywhere."""
        _, seen = _heard(self._texts())
        return f"{SEND} {rng.choice(ROOMS)}" if seen is None else f"{LOOK} {rng.choice(PLACES)}"


def _heard(texts: Sequence[str]) -> tuple[dict[str, str], dict[str, str] | None]:
    """What was reported by room, and what the helper who speaks has seen by place, None where the lead speaks."""
    known: dict[str, str] = {}
    seen: dict[str, str] | None = None
    for text in texts:
        said = text.split()
        if REPORT in said:
            seen = {}
        elif said[0] == "in":
            known[said[1]], seen = " ".join(said[3:]), None
        elif said[0] == "on" and seen is not None:
            seen[said[1]] = said[3]
    return known, seen
