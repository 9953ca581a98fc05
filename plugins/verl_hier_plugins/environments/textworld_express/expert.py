"""The game's own solution as an expert, which undoes what was done besides."""

from __future__ import annotations

import random

from verl_hier_plugins.environments.textworld_express.environment import PUT, TextworldExpressEnvironment

LOOKING = ("look around", "inventory", "task")
"""Commands of a solution that show nothing new, or what the first observation tells."""
ON_THE_WAY = ("move", "open", "close", "read", "examine", *LOOKING)
"""Beginnings of commands that are no subgoals of their own."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


class ExpressExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    Its subgoals are the commands of the solution other than walking, opening and reading: `put coin in box`.
    """

    def __init__(self, environment: TextworldExpressEnvironment) -> None:
        self._environment = environment
        self._solution = [action for action in environment.world.solution() if action not in LOOKING]
        last = len(self._solution) - 1
        self._ends = [n for n, said in enumerate(self._solution) if n == last or not said.startswith(ON_THE_WAY)]
        self._next = self._followed = 0
        self._undo: list[str] = []
        self.subgoals: tuple[str, ...] = tuple(self._solution[end] for end in self._ends)

    def advise(self, subgoal: int) -> str | None:
        """The next command; None when the subgoal is reached or what was done cannot be undone."""
        self._follow()
        possible = self._environment.admissible
        while self._undo:
            if self._undo[-1] in possible:
                return self._undo[-1]
            self._undo.pop()
        while self._next <= self._ends[subgoal]:
            if self._solution[self._next] in possible:
                return self._solution[self._next]
            # Such as a door that is open already; where it matters, no later command will do.
            self._next += 1
        return None

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """The command of the subgoal, while it is not possible yet."""
        wanted = self.subgoals[subgoal]
        return wanted if wanted not in self._environment.admissible else None

    def _follow(self) -> None:
        path = self._environment.path
        for said in path[self._followed :]:
            if self._undo and said == self._undo[-1]:
                self._undo.pop()
            elif not self._undo and self._next < len(self._solution) and said == self._solution[self._next]:
                self._next += 1
            elif (back := undoing(said)) is not None:
                self._undo.append(back)
        self._followed = len(path)


def undoing(said: str) -> str | None:
    """The command that takes another one back; None where nothing has to be, or can be."""
    verb, _, rest = said.partition(" ")
    if verb == "move":
        return f"move {BACK[rest]}" if rest in BACK else None
    if verb in ("open", "close"):
        return f"{'close' if verb == 'open' else 'open'} {rest}"
    put = PUT.fullmatch(said)
    return f"take {put[1]}" if put else None
