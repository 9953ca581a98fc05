"""TextWorld's own winning policy, which TextWorld updates after every action of the player."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from verl_hier_plugins.environments.textworld.engine import World, plain
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
        self.subgoals: tuple[str, ...] = tuple(map(self._command, _without_walking(self._policy())))

    def advise(self, subgoal: int) -> str | None:
        """The next command; None when the subgoal is reached or the quest can no longer be completed."""
        policy = self._policy()
        # Undoing a mistake makes the remaining policy longer, and the current subgoal is then not reached yet.
        if not policy or len(_without_walking(policy)) < len(self.subgoals) - subgoal:
            return None
        return self._command(policy[0])

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """The command of the subgoal, while it is not possible yet."""
        wanted = self.subgoals[subgoal]
        possible = {plain(command) for command in self._environment.node.actions}
        return wanted if plain(wanted) not in possible else None

    def _policy(self) -> Sequence[Any]:
        """TextWorld's actions from the current state to the end."""
        path = self._environment.path
        for action in path[self._followed :]:
            self._progress.update(action)
        self._followed = len(path)
        return self._progress.winning_policy or ()

    def _command(self, action: Any) -> str:
        command = str(self._world.inform.gen_commands_from_actions([action])[0])
        return plain(command) if self._environment.short else command


def _without_walking(policy: Sequence[Any]) -> list[Any]:
    return [action for action in policy if not action.name.startswith("go/")]
