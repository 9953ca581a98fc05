"""TextWorld's own winning policy, which it keeps up to date while a player wanders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from verl_hier_plugins.environments.textworld.engine import World, plain

if TYPE_CHECKING:
    from verl_hier_plugins.environments.textworld.environment import TextworldEnvironment


class TextworldExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    Its subgoals are the actions of the quest other than walking: `unlock chest with key`.
    """

    def __init__(self, environment: TextworldEnvironment) -> None:
        from textworld.generator.game import GameProgression

        self._environment = environment
        self._world: World = environment.node.world
        self._progress = GameProgression(self._world.game)
        self._followed = 0
        self.subgoals: tuple[str, ...] = tuple(map(self._say, _deeds(self._policy())))

    def advise(self, subgoal: int) -> str | None:
        """The next command; None when the subgoal is reached, or when the quest can no longer be."""
        policy = self._policy()
        # A mistake that has to be undone makes the rest longer, and the present subgoal is not reached by it.
        if not policy or len(_deeds(policy)) < len(self.subgoals) - subgoal:
            return None
        return self._say(policy[0])

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """The subgoal's own command before its time."""
        wanted = self.subgoals[subgoal]
        possible = {plain(command) for command in self._environment.node.actions}
        return wanted if plain(wanted) not in possible else None

    def _policy(self) -> Sequence[Any]:
        """TextWorld's actions to the end from where the environment is now."""
        path = self._environment.path
        for action in path[self._followed :]:
            self._progress.update(action)
        self._followed = len(path)
        return self._progress.winning_policy or ()

    def _say(self, action: Any) -> str:
        command = str(self._world.inform.gen_commands_from_actions([action])[0])
        return plain(command) if self._environment.short else command


def _deeds(policy: Sequence[Any]) -> list[Any]:
    return [action for action in policy if not action.name.startswith("go/")]
