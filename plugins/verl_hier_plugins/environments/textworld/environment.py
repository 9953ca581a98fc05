"""TextWorld as an `Environment`. Worlds are cached and shared, so a reset or a fork of a known task is a look-up."""

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
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.textworld.engine import Node, World, plain
from verl_hier_plugins.environments.textworld.making import cache_folder, compiled, generate, load
from verl_hier_plugins.environments.textworld.options import TextworldOptions
from verl_hier_plugins.environments.textworld.story import Snapshot, Story, is_game_command
from verl_hier_plugins.environments.textworld.texts import NOTHING_HAPPENS, describe

KEPT_GAMES = 64
"""Each compiled game holds an interpreter of a few megabytes."""

KEPT_STATES = 50_000


LoadedWorld = tuple[World, Story | None]
"""A world, and its compiled game for `observation: full`."""


@functools.cache
def _worlds(options: TextworldOptions) -> WorldCache[LoadedWorld]:
    """The worlds that all environments of a process share."""
    return WorldCache(KEPT_GAMES, KEPT_STATES, lambda kept: kept[0].states)


def _load(task: Mapping[str, Any], options: TextworldOptions) -> LoadedWorld:
    file = Path(options.data_path).expanduser() / task["game"] if "game" in task else None
    game = generate(task["world"]) if "world" in task else load(file) if file is not None else None
    if game is None:
        raise RecipeError("hier.environment: a textworld task needs a `world` or a `game`; make it with `tasks`.")
    if options.observation == "short":
        return World(game), None
    is_compiled = file is not None and file.suffix == ".z8"
    return World(game), Story(file if is_compiled and file else compiled(game, cache_folder(options.cache)))


class TextworldEnvironment(Environment):
    """One episode of TextWorld. Its state is a node, a snapshot of the Z-machine, and the actions so far.

    Attributes:
        node: the current state; set by `reset`.
        path: TextWorld's actions since the reset.
    """

    node: Node

    def __init__(self, options: TextworldOptions) -> None:
        self.path: tuple[Any, ...] = ()
        self._options = options
        self._story: Story | None = None
        self._snapshot: Snapshot = ()
        self._steps = 0

    @property
    def short(self) -> bool:
        """Whether commands are in plain words."""
        return self._options.observation == "short"

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Everything random was drawn when the game was made, so `seed` changes nothing."""
        key = json.dumps(task.get("world") or task.get("game"), sort_keys=True)
        world, self._story = _worlds(self._options).get(key, lambda: _load(task, self._options))
        self.node, self._steps, self.path = world.start, 0, ()
        if self._story is None:
            return self._answer(describe(world.start))
        self._snapshot = self._story.opening.snapshot
        return self._answer(self._story.opening.text)

    def step(self, action: str) -> StepResult:
        """Give the game a command."""
        command = " ".join(without_thoughts(action).split())
        self._steps += 1
        before = self.node.points
        if self._over:
            return self._answer(NOTHING_HAPPENS, valid=False)
        if self._story is None:
            return self._follow_rules(command, before)
        if command not in self.node.actions and not is_game_command(command):
            return self._answer(NOTHING_HAPPENS, valid=False)
        answer = self._story.answer(self._snapshot, command)
        node, path = self.node, list(self.path)
        for event in answer.events:
            done = node.world.inform.detect_action(event, node.actions.values())
            if done is not None:
                path.append(done)
                node = node.follow(done)
        if len(path) == len(self.path):
            # No action was done, so the state of the machine before the command stays.
            return self._answer(answer.text, valid=False)
        self.node, self.path, self._snapshot = node, tuple(path), answer.snapshot
        return self._answer(answer.text, before)

    def fork(self) -> TextworldEnvironment:
        """A copy that refers to the same state; the two move on independently."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """TextWorld's own policy for the quests. It knows the whole world, so the arguments have no effect."""
        from verl_hier_plugins.environments.textworld.expert import TextworldExpert

        return TextworldExpert(self)

    @property
    def _over(self) -> bool:
        return self.node.won or self.node.lost

    def _follow_rules(self, command: str, before: int) -> StepResult:
        known = {plain(listed): listed for listed in self.node.actions}
        listed = known.get(plain(command))
        if listed is None:
            return self._answer(NOTHING_HAPPENS, valid=False)
        action = self.node.actions[listed]
        self.node, self.path = self.node.walk(listed), (*self.path, action)
        return self._answer(describe(self.node, action), before)

    def _answer(self, text: str, before: int | None = None, valid: bool = True) -> StepResult:
        node, options = self.node, self._options
        most = node.world.most_points
        worth = most if 0 < most < float("inf") else 1.0
        reward = (node.points - before) / worth if before is not None else 0.0
        commands = () if self._over else tuple(node.actions)
        if self._story is None:
            commands = tuple(dict.fromkeys(map(plain, commands)))
        if options.show_admissible and commands:
            text = with_admissible(text, commands)
        return StepResult(
            text=text,
            reward=reward if valid else -options.invalid_penalty,
            done=self._over,
            truncated=not self._over and self._steps >= options.max_steps,
            valid=valid,
            admissible=commands,
            anchor=node.anchor,
            info={"won": node.won, "score": node.points / worth, "points": node.points},
        )
