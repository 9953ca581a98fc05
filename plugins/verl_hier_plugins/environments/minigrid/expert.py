"""BabyAI's bot as an expert: it is told what was done and says what to do next."""

from __future__ import annotations

import random
from typing import Any

from verl_hier_plugins.environments.minigrid.environment import ACTIONS, MinigridEnvironment


class MinigridExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`. Its only subgoal is the mission."""

    _followed: int

    def __init__(self, environment: MinigridEnvironment) -> None:
        self._environment = environment
        self.subgoals: tuple[str, ...] = (str(environment.world.mission),)
        self._start()

    def advise(self, subgoal: int) -> str | None:
        """The next action; None when the mission is fulfilled or the bot has no plan for what was done."""
        if not self._environment.admissible:
            return None
        path = self._environment.path
        if len(path) > self._followed + 1:
            # It was not asked for a while, and has to be told of every action at once: a new one looks around again.
            self._start()
        elif len(path) > self._followed:
            self._advice = self._ask(ACTIONS.index(path[-1].lower()))
            self._followed = len(path)
        return self._advice

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """An action that would change nothing here; None when there is none."""
        useless = [said for said in ACTIONS if said not in self._environment.admissible]
        return rng.choice(useless) if useless else None

    def _start(self) -> None:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        self._bot: Any = BabyAIBot(self._environment.world)
        self._followed = len(self._environment.path)
        self._advice = self._ask(None)

    def _ask(self, done: int | None) -> str | None:
        try:
            action = int(self._bot.replan(done))
        except Exception:
            # It gives up in many ways, such as on a box that was opened and is gone.
            return None
        return ACTIONS[action] if action < len(ACTIONS) else None
