"""The expert: the first move of a puzzle's shortest solution, or a sensible move of a game, anew in every state."""

from __future__ import annotations

import random

from verl_hier_plugins.environments.textarena.environment import TextarenaEnvironment
from verl_hier_plugins.environments.textarena.games import Game


class TextarenaExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`. Its only subgoal is the goal of the game."""

    def __init__(self, environment: TextarenaEnvironment, known: Game, rng: random.Random) -> None:
        self._environment = environment
        self._rng = rng
        self._known = known
        self.subgoals: tuple[str, ...] = (known.goal,)

    def advise(self, subgoal: int) -> str | None:
        """The next move, in a game of the player whose turn it is; None when the game is over, or a puzzle cannot be
        solved any more."""
        game = self._environment.game
        if game.state.done:
            return None
        if self._known.solve is None:
            return self._rng.choice(self._known.good(game)) if self._known.good else None
        solution = self._known.solve(game)
        return solution[0] if solution else None

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """A move that the game refuses here, such as walking into a wall; None when every move is possible."""
        possible = self._environment.moves()
        wrong = [move for move in self._known.words if move not in possible]
        return rng.choice(wrong) if wrong else None
