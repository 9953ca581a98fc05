"""The sample agent that looks for a thing in the rooms of a house, and asks the policy which one to look into.

The house is the agent's own; verl-hier sees none of it but what the agent asks. Its requests are made with the standard
library; examples/agents has the same agent on the `openai` package and on the OpenAI Agents SDK.
"""

from __future__ import annotations

import json
import os
import random
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

THINGS = ("lamp", "book", "cup", "key", "coat", "rope")
ROOMS = ("attic", "cellar", "kitchen", "garden", "hall")
LOOK, ANSWER = "look", "answer"


class Episode(Protocol):
    """What experts look at: the environment of the gateway in an episode.

    Attributes:
        task: what the agent does.
        exchanges: what was shown and answered so far.
        shown: what is to be answered now.
    """

    task: Mapping[str, Any]
    exchanges: list[tuple[str, str]]
    shown: str


def play(task: Mapping[str, Any]) -> str:
    """Do a task: `instruction`, and `rooms` with what is in each. Returns the policy's answer, a room."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": opening(task)}]
    while True:
        answer = ask(messages)
        messages.append(answer)
        said = answer["content"]
        word, _, rest = said.strip().partition(" ")
        if word == ANSWER:
            return rest
        room = rest if word == LOOK else ""
        messages.append({"role": "user", "content": seen(task, room)})


def opening(task: Mapping[str, Any]) -> str:
    """What the agent asks first."""
    return f"{task['instruction']} ; say {LOOK} or {ANSWER} and one of {' '.join(task['rooms'])}"


def seen(task: Mapping[str, Any], room: str) -> str:
    """What is in a room."""
    thing = task["rooms"].get(room.strip())
    return f"in {room.strip()} is {thing}" if thing else "there is no such room"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key of the episode goes to no other address."""

    def redirect_request(self, *request: Any, **more: Any) -> None:
        return None


def ask(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The policy's message behind those of a conversation; `more` goes into the request, such as `tools`."""
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, **more}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.build_opener(_NoRedirect).open(request) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def house(number: int) -> tuple[dict[str, Any], str, str]:
    """What is in the rooms of a house, the thing that is looked for, and its room."""
    rng = random.Random(f"house-{number}")
    rooms = rng.sample(ROOMS, 3)
    things = rng.sample(THINGS, len(rooms))
    place = rng.randrange(len(rooms))
    return dict(zip(rooms, things, strict=True)), things[place], rooms[place]


def words() -> Iterable[str]:
    """Texts with every word of the sample agent."""
    yield from (f"in {room} is {thing}" for room in ROOMS for thing in THINGS)
    yield f"find lamp ; say {LOOK} or {ANSWER} and one of hall ; there is no such room ; you can say look room"


class HouseExpert:
    """What the experts of the sample agents have in common; see `verl_hier.environments.expert.Expert`."""

    def __init__(self, environment: Episode, rng: random.Random, skip_stage: float) -> None:
        self._environment = environment
        self._thing = environment.task["goal"]
        # The error of demonstrations: to guess without having looked, or without having sent anybody.
        self._guess = rng.choice(list(environment.task["rooms"])) if rng.random() < skip_stage else ""
        self.subgoals = (f"{ANSWER} {self._guess}",) if self._guess else (f"find {self._thing}",)

    def advise(self, subgoal: int) -> str | None:
        """The next thing to say."""
        return f"{ANSWER} {self._guess}" if self._guess else self._next(self._texts())

    def _texts(self) -> list[str]:
        """What was shown so far, what is to be answered now last."""
        return [*(shown for shown, _ in self._environment.exchanges), self._environment.shown]

    def _next(self, texts: Sequence[str]) -> str:
        raise NotImplementedError


class SearchExpert(HouseExpert):
    """Looks into one room after the other until it sees the thing."""

    def _next(self, texts: Sequence[str]) -> str:
        rooms = self._environment.task["rooms"]
        known = {room: thing for room, thing in rooms.items() if f"in {room} is {thing}" in texts}
        found = next((room for room, thing in known.items() if thing == self._thing), None)
        return f"{ANSWER} {found}" if found else f"{LOOK} {next(room for room in rooms if room not in known)}"

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """To look into any room, there or not."""
        return f"{LOOK} {rng.choice(ROOMS)}"
