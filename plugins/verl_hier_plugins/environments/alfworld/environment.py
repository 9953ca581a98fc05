"""ALFWorld as an `Environment`: games are kept and shared, so a reset or a fork of a known task is a look-up."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.environments.world_cache import WorldCache
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.alfworld.engine import NOTHING_HAPPENS, Game, Node
from verl_hier_plugins.environments.alfworld.goals import goals_done, goals_of_file
from verl_hier_plugins.environments.alfworld.grammar import parse_grammar
from verl_hier_plugins.environments.alfworld.options import AlfworldOptions
from verl_hier_plugins.environments.alfworld.pddl import domain_and_grammar, game_data
from verl_hier_plugins.environments.alfworld.tasks import data_root
from verl_hier_plugins.environments.alfworld.texts import shorten, with_admissible
from verl_hier_plugins.environments.alfworld.world import Goal, build_world, names

KEPT_GAMES = 1024
KEPT_STATES = 100_000


class Library:
    """Games by task, shared by all environments of a process; the ones used last are kept."""

    def __init__(self, options: AlfworldOptions) -> None:
        self._options = options
        self._shelf: WorldCache[tuple[Game, tuple[Goal, ...]]] = WorldCache(
            KEPT_GAMES, KEPT_STATES, lambda kept: kept[0].states
        )

    def game(self, task: Mapping[str, Any]) -> tuple[Game, tuple[Goal, ...]]:
        """The game of a task, and its goals where they are known (generated tasks)."""
        key = json.dumps(task["world"], sort_keys=True) if "world" in task else str(task.get("game"))
        return self._shelf.get(key, lambda: self._load(task))

    def _load(self, task: Mapping[str, Any]) -> tuple[Game, tuple[Goal, ...]]:
        if "world" in task:
            world = build_world(task["world"])
            return Game(game_data(world)), world.goals
        if "game" in task:
            file = data_root(self._options) / task["game"]
            return Game(json.loads(file.read_text())), goals_of_file(file)
        raise RecipeError("hier.environment: an alfworld task needs a `world` or a `game` entry; make it with `tasks`.")


class AlfworldEnvironment(Environment):
    """One episode of ALFWorld. Its whole state is a node of a game and a step count."""

    def __init__(self, options: AlfworldOptions, library: Library) -> None:
        self._options = options
        self._library = library
        self._node: Node | None = None
        self._goals: tuple[Goal, ...] = ()
        self._steps = 0

    @property
    def node(self) -> Node:
        """The state, for experts and tests."""
        if self._node is None:
            raise RuntimeError("reset() comes before anything else")
        return self._node

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What a generated task asks for; empty for a game of the data set."""
        return self._goals

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Everything random was drawn when the task was made, so `seed` changes nothing."""
        game, self._goals = self._library.game(task)
        self._node, self._steps = game.start, 0
        return self._answer(self._opening(game))

    def step(self, action: str) -> StepResult:
        """Say a command to the game."""
        command = " ".join(action.split())
        walked = self.node.walk(command)
        self._steps += 1
        if walked is None:
            return self._answer(NOTHING_HAPPENS, valid=False)
        before = self.node.won
        self._node, text = walked
        return self._answer(text, reward=float(self._node.won and not before))

    def fork(self) -> AlfworldEnvironment:
        """A copy; both point at the same state and move on independently."""
        copy = AlfworldEnvironment(self._options, self._library)
        copy._node, copy._goals, copy._steps = self._node, self._goals, self._steps
        return copy

    def close(self) -> None:
        """Let go of the game."""
        self._node = None

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the task that was reset; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.alfworld.expert import AlfworldExpert, plan

        if not self._goals:
            raise RecipeError(
                "hier.environment.source: the expert needs a game whose goals are known (traj_data.json)."
            )
        return AlfworldExpert(self, plan(self._goals, rng, skip_stage), remember)

    def vocabulary(self) -> list[str]:
        """Names of all entities of generated worlds, and the words of the grammar."""
        if self._options.source != "generated":
            return []
        _, grammar = domain_and_grammar()
        return [*names(self._options.size[0]), *parse_grammar(grammar).words()]

    def _opening(self, game: Game) -> str:
        if self._options.observation == "full":
            return game.intro
        # The task sentence is left out: workers put `task["instruction"]` where they want it.
        return " ".join(game.places)

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True) -> StepResult:
        node, options = self.node, self._options
        if options.observation == "short" and self._steps:
            text = shorten(text)
        if options.show_admissible:
            text = with_admissible(text, node.admissible)
        done = goals_done(self._goals, node) if self._goals else int(node.won)
        return StepResult(
            text=text,
            reward=reward if valid else reward - options.invalid_penalty,
            done=node.won,
            truncated=not node.won and self._steps >= options.max_steps,
            valid=valid,
            admissible=node.admissible,
            anchor=node.anchor,
            info={
                "won": node.won,
                "score": float(node.won),
                "goals_done": done,
                "goals": len(self._goals) or 1,
                **({} if self._steps else {"places": " ".join(node.game.places)}),
            },
        )


@functools.cache
def _library(options: AlfworldOptions) -> Library:
    return Library(options)


def build(options: AlfworldOptions) -> AlfworldEnvironment:
    """A new environment; all those of one process and one set of options share their games."""
    return AlfworldEnvironment(options, _library(options))
