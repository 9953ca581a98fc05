"""ALFWorld as an `Environment`. Games are cached and shared, so a reset or a fork of a known task is a look-up."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hier.environments.base import Environment, StepResult, with_admissible
from verl_hier.environments.expert import Expert
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.environments.world_cache import WorldCache
from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import read_json
from verl_hier_plugins.environments.alfworld.engine import NOTHING_HAPPENS, Game, Node
from verl_hier_plugins.environments.alfworld.goals import LARGEST_FILE, goals_done, goals_of_file
from verl_hier_plugins.environments.alfworld.grammar import parse_grammar
from verl_hier_plugins.environments.alfworld.options import AlfworldOptions
from verl_hier_plugins.environments.alfworld.pddl import domain_and_grammar, game_data
from verl_hier_plugins.environments.alfworld.tasks import data_root
from verl_hier_plugins.environments.alfworld.texts import shorten
from verl_hier_plugins.environments.alfworld.world import Goal, build_world, names

KEPT_GAMES = 1024
KEPT_STATES = 100_000


LoadedGame = tuple[Game, tuple[Goal, ...]]
"""A game, and its goals where they are known."""


@functools.cache
def _games(options: AlfworldOptions) -> WorldCache[LoadedGame]:
    """The games that all environments of a process share."""
    return WorldCache(KEPT_GAMES, KEPT_STATES, lambda kept: kept[0].states)


def _load(task: Mapping[str, Any], options: AlfworldOptions) -> LoadedGame:
    if "world" in task:
        world = build_world(task["world"])
        return Game(game_data(world)), world.goals
    if "game" in task:
        file = data_root(options) / task["game"]
        return Game(_game_of(file)), goals_of_file(file)
    raise RecipeError("hier.environment: an alfworld task needs a `world` or a `game` entry; make it with `tasks`.")


def _game_of(file: Path) -> dict[str, Any]:
    data = read_json(file, LARGEST_FILE)
    keys = ("grammar", "pddl_domain", "pddl_problem")
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in keys):
        raise FileError(f"{file} is not a game of ALFWorld: it needs the texts {', '.join(keys)}.")
    return data


class AlfworldEnvironment(Environment):
    """One episode of ALFWorld. Its state is a node of a game and a step count.

    Attributes:
        node: the current state; set by `reset`.
        goals: the goals of a generated task; empty for a game of the data set whose goals are unknown.
    """

    node: Node

    def __init__(self, options: AlfworldOptions) -> None:
        self.goals: tuple[Goal, ...] = ()
        self._options = options
        self._steps = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. `seed` has no effect, because all random choices are part of the task."""
        options = self._options
        key = json.dumps(task.get("world") or task.get("game"), sort_keys=True)
        game, self.goals = _games(options).get(key, lambda: _load(task, options))
        self.node, self._steps = game.start, 0
        return self._answer(self._opening(game))

    def step(self, action: str) -> StepResult:
        """Give the game a command."""
        command = " ".join(without_thoughts(action).split())
        walked = self.node.walk(command)
        self._steps += 1
        if walked is None:
            return self._answer(NOTHING_HAPPENS, valid=False)
        before = self.node.won
        self.node, text = walked
        return self._answer(text, reward=self._options.win_reward * (self.node.won and not before))

    def fork(self) -> AlfworldEnvironment:
        """A copy that refers to the same state; the two move on independently."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the current task; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.alfworld.expert import AlfworldExpert, plan

        if not self.goals:
            raise RecipeError(
                "hier.environment.source: the expert needs a game whose goals are known (traj_data.json)."
            )
        return AlfworldExpert(self, plan(self.goals, rng, skip_stage), remember)

    def vocabulary(self) -> list[str]:
        """Names of all entities of generated worlds, and the words of the grammar."""
        if self._options.source != "generated":
            return []
        _, grammar = domain_and_grammar()
        return [*names(self._options.size[0]), *parse_grammar(grammar).words]

    def _opening(self, game: Game) -> str:
        if self._options.observation == "full":
            return game.intro
        # The task sentence is left out: workers put `task["instruction"]` where they want it.
        return " ".join(game.places)

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True) -> StepResult:
        node, options = self.node, self._options
        said = text if self._steps else node.game.intro
        if options.observation == "short" and self._steps:
            text = shorten(text)
        if options.show_admissible:
            text = with_admissible(text, node.admissible)
        done = goals_done(self.goals, node) if self.goals else int(node.won)
        return StepResult(
            text=text,
            reward=reward if valid else reward - options.invalid_penalty,
            done=node.won,
            truncated=not node.won and self._steps >= options.max_steps,
            valid=valid,
            admissible=node.admissible,
            anchor=node.anchor if options.anchor == "state" else said,
            info={
                "won": node.won,
                "score": float(node.won),
                "goals_done": done,
                "goals": len(self.goals) or 1,
                **({} if self._steps else {"places": " ".join(node.game.places)}),
            },
        )
