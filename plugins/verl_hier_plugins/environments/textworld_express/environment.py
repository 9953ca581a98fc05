"""TextWorldExpress as a text environment: the game's answers, what is read of them, and what identifies a state."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.expert import Expert
from verl_hier.environments.gym_text import GymText, TextView
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.textworld_express.machine import machine
from verl_hier_plugins.environments.textworld_express.options import TextworldExpressOptions

ROOM = re.compile(r"You are in the ([^.]+)\.")
PUT = re.compile(r"put (.+) (?:in|on) (.+)")
DROPPED = re.compile(
    r"\b(it's|you|your|are|in|the|one|part|of|room|see|there|is|also|another|an?|that|has|on|it|and|to|contains|currently|into"
    r"|located|found|provided|may|find|helpful|maximum|capacity|items?)\b|[^a-z0-9. \n-]"
)


class ExpressGame:
    """One game, with gymnasium's `reset` and `step`. An observation is the game's text.

    Attributes:
        answer: the game's last answer, as the game names its parts.
        description: the task in the game's words.
        moves: number of commands since the reset.
    """

    answer: Mapping[str, Any]
    description: str

    def __init__(self, task: Mapping[str, Any], options: TextworldExpressOptions) -> None:
        numbers = options.settings.get(task["game"], {})
        self._kind = task["game"], ",".join(f"{name}={value}" for name, value in numbers.items())
        self._fold, self._options = task["fold"], options
        self._machine = machine(options.java_memory_mb)
        self._played: Any = self._machine.game(*self._kind)

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """The game of a seed."""
        self._seed, self._seen, self._put, self.moves = seed, dict[str, str](), dict[str, str](), 0
        self.answer = json.loads(self._begin(self._played, False))
        self.description = str(self._played.getTaskDescription())
        self._note("")
        return self.answer["observation"], {}

    def step(self, said: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the game a command that it lists."""
        before = self.answer["score"]
        self.answer = json.loads(self._played.stepJSON(said))
        self._note(said)
        self.moves += 1
        ended = self.answer["tasksuccess"] or self.answer["taskfailure"]
        return self.answer["observation"], self.answer["score"] - before, ended, False, {}

    def solution(self) -> list[str]:
        """The game's own solution from its start, on a game of its own."""
        other = self._machine.game(*self._kind)
        self._begin(other, True)
        found = [str(action) for action in other.getGoldActionSequence()]
        self._machine.give_back(self._kind, other)
        return found

    def close(self) -> None:
        """Let another episode have the game."""
        if self._machine.alive:
            self._machine.give_back(self._kind, self._played)

    @property
    def commands(self) -> tuple[str, ...]:
        """What the game understands now; it lists this in no fixed order."""
        return tuple(sorted(self.answer["validActions"]))

    @property
    def state(self) -> str:
        """What was seen last of each room, what is carried, where things were put, and the score."""
        now = (self.answer["look"] or self.answer["observation"], self.answer["inventory"], self.answer["score"])
        known = (sorted(self._seen.items()), sorted(self._put.items()))
        return json.dumps([*self._kind, self._fold, self._seed, now, known])

    def _begin(self, game: Any, with_solution: bool) -> str:
        from py4j.protocol import Py4JJavaError

        try:
            return str(game.generateNewGameJSON(self._seed, self._fold, with_solution))
        except Py4JJavaError as error:
            reason = str(error.java_exception.getMessage()).removeprefix("ERROR:").strip()
            name, settings = self._kind
            raise RecipeError(f"hier.environment.settings: {name} makes no world of {settings!r}: {reason}") from error

    def _note(self, said: str) -> None:
        room = ROOM.search(self.answer["look"])
        if room is not None:
            self._seen[room[1]] = self.answer["look"]
        if put := PUT.fullmatch(said):
            self._put[put[1]] = f"{put[2]} {room[1] if room else ''}"
        elif said.startswith("take "):
            self._put.pop(said.removeprefix("take "), None)


class ExpressView(TextView):
    """The game's texts, or few words of them."""

    def __init__(self, options: TextworldExpressOptions) -> None:
        self._options = options

    def text(self, world: ExpressGame, observation: str, info: Mapping[str, Any]) -> str:
        """The first observation tells the task, if the options say so."""
        told = f"{world.description}\n{observation}" if self._options.describe and not world.moves else observation
        return short(told) if self._options.observation == "short" else told.strip()

    def actions(self, world: ExpressGame) -> Mapping[str, str]:
        """The commands that the game lists."""
        return {command: command for command in world.commands}

    def anchor(self, world: ExpressGame) -> str:
        """See `ExpressGame.state`."""
        return world.state

    def won(self, world: ExpressGame, reward: float, ended: bool) -> bool:
        """As the game says."""
        return bool(world.answer["tasksuccess"])

    def score(self, world: ExpressGame, won: bool) -> float:
        """As the game counts, from 0 to 1."""
        return float(max(0.0, min(1.0, world.answer["score"])))

    def facts(self, world: ExpressGame) -> Mapping[str, Any]:
        """The task in the game's words."""
        return {"task": short(world.description) if self._options.observation == "short" else world.description}


def short(text: str) -> str:
    """The words that matter: `corridor ; shoe cabinet closed ; coat hanger white coat`."""
    kept = DROPPED.sub(" ", text.lower())
    parts = (" ".join(part.split()) for part in re.split(r"[.\n]", kept))
    return " ; ".join(part for part in parts if part)


class TextworldExpressEnvironment(GymText):
    """One game. A fork is a replay: Java's objects cannot be copied."""

    def __init__(self, options: TextworldExpressOptions) -> None:
        super().__init__(lambda task: ExpressGame(task, options), ExpressView(options), options, copies=False)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """The game's own solution. It knows the whole world, so the arguments have no effect."""
        from verl_hier_plugins.environments.textworld_express.expert import ExpressExpert

        return ExpressExpert(self)
