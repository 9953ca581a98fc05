"""ScienceWorld as a text environment: the world's answers, what is read of them, and what identifies a state."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.expert import Expert
from verl_hier.environments.gym_text import GymText, TextView
from verl_hier.environments.java import JavaMachine, Machines
from verl_hier_plugins.environments.scienceworld.options import ScienceworldOptions

ROOM = re.compile(r"called the ([^.]+)\.")
SAME_ORDER = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""Java numbers objects by chance, and sets of them have an order by these numbers: the order in which a room is told
and in which actions are matched. With equal numbers it is the order in which they were put in."""
NOT_UNDERSTOOD = "No known action matches that input."
ELECTRICAL = ("power-component", "conductivity")
WITHOUT_ELECTRICAL = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots")
"""What `easy` comes to in an experiment with electricity."""
EMPTY = re.compile(r"\. (?:on|in) the [a-z ]+ is: nothing\b|\ba substance called air\b|\bthe agent\b")
DROPPED = re.compile(
    r"\ba\(n\)|\b(this (?:room|outside location) is called|(?:in it, |here |in your inventory, )you see|you also see"
    r"|a substance called|containing nothing|containing|that is|which is|currently|a|an|the|is)\b|[^a-z0-9. \n-]"
)


class Machine(JavaMachine):
    """A Java machine with games of ScienceWorld."""

    def __init__(self, memory_mb: int) -> None:
        from scienceworld.constants import BASEPATH, JAR_PATH

        super().__init__("scienceworld", JAR_PATH, BASEPATH, memory_mb, SAME_ORDER)

    def game(self) -> Any:
        """A game that nobody plays: Java's object, which is begun by `load`."""
        return self.take("game", self.jvm.scienceworld.runtime.pythonapi.PythonInterface)


machine = Machines(Machine)
"""The machine of this process."""


class Experiment:
    """One game, with gymnasium's `reset` and `step`. An observation is the world's text.

    Attributes:
        description: the task in the world's words.
        value: the world's score, from 0 to 1; below 0 when the experiment has failed.
        moves: how many of the actions since the reset took time.
        begun: whether an action has been done since the reset.
    """

    description: str

    def __init__(self, task: Mapping[str, Any], options: ScienceworldOptions) -> None:
        self._name, self._options = task["experiment"], options
        self._machine = machine(options.java_memory_mb)
        self._played: Any = self._machine.game()

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """The variation of this number."""
        self._seed = seed
        self.begun = False
        self._seen: dict[str, str] = {}
        self._begin(self._played, False)
        self.description = str(self._played.getTaskDescription())
        first = str(self._played.step("look around"))
        # Where an experiment begins may be worth something.
        self.value, self.moves = float(self._played.getScore()), int(self._played.getNumMoves())
        self._note()
        return first, {}

    def step(self, said: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the world a text. With `reward: score` a failed experiment costs what had been scored."""
        before = max(0.0, self.value)
        text = str(self._played.step(said))
        if text == NOT_UNDERSTOOD:
            return text, 0.0, False, False, {}
        self.begun = True
        self.value, self.moves = float(self._played.getScore()), int(self._played.getNumMoves())
        self._note()
        ended = bool(self._played.getCompleted()) or self.value < 0
        gained = max(0.0, self.value) - before if self._options.reward == "score" else float(ended and self.value >= 1)
        return text, self._options.win_reward * gained, ended, False, {}

    def solution(self) -> list[str]:
        """The world's own solution from its start, on a game of its own."""
        other = self._machine.game()
        self._begin(other, True)
        found = [str(action) for action in other.getGoldActionSequence()]
        self._machine.give_back("game", other)
        return found

    def close(self) -> None:
        """Let another episode have the game."""
        if self._machine.alive:
            self._machine.give_back("game", self._played)

    @property
    def commands(self) -> tuple[str, ...]:
        """What is possible now."""
        return tuple(sorted(str(each) for each in self._played.getValidActionObjectCombinations()))

    @property
    def state(self) -> str:
        """What was seen last of each room, what is carried, the time, and the score."""
        carried = str(self._played.freeActionInventory())
        return json.dumps([self._name, self._seed, sorted(self._seen.items()), carried, self.moves, self.value])

    def _begin(self, game: Any, with_solution: bool) -> None:
        simplified: list[str] = list(self._options.simplifications)
        if "easy" in simplified and any(word in self._name for word in ELECTRICAL):
            simplified = [*(each for each in simplified if each != "easy"), *WITHOUT_ELECTRICAL]
        game.load(self._name, self._seed, ",".join(dict.fromkeys(simplified)), with_solution)

    def _note(self) -> None:
        look = str(self._played.freeActionLook())
        room = ROOM.search(look)
        self._seen[room[1] if room else ""] = look


class ScienceView(TextView):
    """The world's texts, or few words of them."""

    def __init__(self, options: ScienceworldOptions) -> None:
        self._options = options

    def text(self, world: Experiment, observation: str, info: Mapping[str, Any]) -> str:
        """The first observation tells the task, if the options say so."""
        told = observation if world.begun or not self._options.describe else f"{world.description}\n{observation}"
        return short(told) if self._options.observation == "short" else told.strip()

    def actions(self, world: Experiment) -> Mapping[str, str]:
        """What the world lists, if it is asked."""
        return {command: command for command in world.commands} if self._options.list_actions else {}

    def action(self, world: Experiment, said: str) -> str | None:
        """Whatever is said: the world understands more than it lists."""
        return said or None

    def understood(self, world: Experiment, observation: str) -> bool:
        """As the world says."""
        return observation != NOT_UNDERSTOOD

    def anchor(self, world: Experiment) -> str:
        """See `Experiment.state`."""
        return world.state

    def won(self, world: Experiment, reward: float, ended: bool) -> bool:
        """When everything is scored."""
        return world.value >= 1

    def score(self, world: Experiment, won: bool) -> float:
        """As the world counts, from 0 to 1."""
        return max(0.0, min(1.0, world.value))

    def facts(self, world: Experiment) -> Mapping[str, Any]:
        """The task in the world's words."""
        return {"task": short(world.description) if self._options.observation == "short" else world.description}


def short(text: str) -> str:
    """The words that matter: `kitchen ; glass jar sodium chloride ; door to hallway open`."""
    kept = DROPPED.sub(" ", EMPTY.sub("", text.lower()))
    parts = (" ".join(part.split()) for part in re.split(r"[.\n]", kept))
    return " ; ".join(part for part in parts if part)


class ScienceworldEnvironment(GymText):
    """One experiment. A fork is a replay: Java's objects cannot be copied."""

    def __init__(self, options: ScienceworldOptions) -> None:
        super().__init__(lambda task: Experiment(task, options), ScienceView(options), options, copies=False)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """The world's own solution. It knows the whole world, so the arguments have no effect."""
        from verl_hier_plugins.environments.scienceworld.expert import ScienceExpert

        return ScienceExpert(self)
