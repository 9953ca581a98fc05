"""TextWorld as an `Environment`: worlds are kept and shared, so a reset or a fork of a known task is a look-up."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.world_cache import WorldCache
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.textworld.engine import Node, World, plain
from verl_hier_plugins.environments.textworld.expert import TextworldExpert
from verl_hier_plugins.environments.textworld.making import cache_folder, compiled, generate, load
from verl_hier_plugins.environments.textworld.options import TextworldOptions
from verl_hier_plugins.environments.textworld.story import Snapshot, Story, spoken
from verl_hier_plugins.environments.textworld.texts import NOTHING_HAPPENS, describe, with_admissible

KEPT_GAMES = 64
"""A compiled game holds an interpreter of a few megabytes."""

KEPT_STATES = 50_000


class Library:
    """Worlds by task, shared by all environments of a process; the ones used last are kept."""

    def __init__(self, options: TextworldOptions) -> None:
        self._options = options
        self._shelf: WorldCache[tuple[World, Story | None]] = WorldCache(
            KEPT_GAMES, KEPT_STATES, lambda kept: kept[0].states
        )

    def world(self, task: Mapping[str, Any]) -> tuple[World, Story | None]:
        """The world of a task, and its compiled game where the recipe asks for its words."""
        key = json.dumps(task.get("world") or task.get("game"), sort_keys=True)
        return self._shelf.get(key, lambda: self._load(task))

    def _load(self, task: Mapping[str, Any]) -> tuple[World, Story | None]:
        options, file = self._options, None
        if "world" in task:
            game = generate(task["world"])
        elif "game" in task:
            file = Path(options.data_path).expanduser() / task["game"]
            game = load(file)
        else:
            game = None
        if game is None:
            raise RecipeError("hier.environment: a textworld task needs a `world` or a `game`; make it with `tasks`.")
        if options.observation == "short":
            return World(game), None
        ready = file is not None and file.suffix == ".z8"
        return World(game), Story(file if ready and file else compiled(game, cache_folder(options.cache)))


class TextworldEnvironment(Environment):
    """One episode of TextWorld. Its whole state is a node, a snapshot of the Z-machine, and the way here."""

    def __init__(self, options: TextworldOptions, library: Library) -> None:
        self._options = options
        self._library = library
        self._node: Node | None = None
        self._story: Story | None = None
        self._snapshot: Snapshot = ()
        self._steps = 0
        self._path: tuple[Any, ...] = ()

    @property
    def node(self) -> Node:
        """The state, for experts and tests."""
        if self._node is None:
            raise RuntimeError("reset() comes before anything else")
        return self._node

    @property
    def short(self) -> bool:
        """Whether commands are in plain words."""
        return self._options.observation == "short"

    @property
    def path(self) -> tuple[Any, ...]:
        """TextWorld's actions since the reset."""
        return self._path

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Everything random was drawn when the game was made, so `seed` changes nothing."""
        world, self._story = self._library.world(task)
        self._node, self._steps, self._path = world.start, 0, ()
        if self._story is None:
            return self._answer(describe(world.start))
        self._snapshot = self._story.opening.snapshot
        return self._answer(self._story.opening.text)

    def step(self, action: str) -> StepResult:
        """Say a command to the game."""
        command = " ".join(action.split())
        self._steps += 1
        before = self.node.points
        if self._over:
            return self._answer(NOTHING_HAPPENS, valid=False)
        if self._story is None:
            return self._follow_rules(command, before)
        if command not in self.node.actions and not spoken(command):
            return self._answer(NOTHING_HAPPENS, valid=False)
        answer = self._story.generate(self._snapshot, command)
        node, path = self.node, list(self._path)
        for event in answer.events:
            done = node.world.inform.detect_action(event, node.actions.values())
            if done is not None:
                path.append(done)
                node = node.follow(done)
        if len(path) == len(self._path):
            # Nothing in the world was done, so the machine forgets that it was asked.
            return self._answer(answer.text, valid=False)
        self._node, self._path, self._snapshot = node, tuple(path), answer.snapshot
        return self._answer(answer.text, before)

    def fork(self) -> TextworldEnvironment:
        """A copy; both point at the same state and move on independently."""
        twin = TextworldEnvironment(self._options, self._library)
        twin.__dict__.update(vars(self))
        return twin

    def close(self) -> None:
        """Let go of the game."""
        self._node, self._story, self._snapshot = None, None, ()

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> TextworldExpert:
        """TextWorld's own policy for the quests. It knows the whole world, so it remembers and skips nothing."""
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
        self._node, self._path = self.node.walk(listed), (*self._path, action)
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


@functools.cache
def _library(options: TextworldOptions) -> Library:
    return Library(options)


def build(options: TextworldOptions) -> TextworldEnvironment:
    """A new environment; all those of one process and one set of options share their worlds."""
    return TextworldEnvironment(options, _library(options))
