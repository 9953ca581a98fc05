"""Games: generated from a few numbers, read from a file, or compiled for the Z-machine once and kept on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError


@functools.cache
def _knowledge() -> Any:
    """TextWorld's rules and grammar; parsing them takes ten times as long as generating a game."""
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.load()


def generate(world: Mapping[str, Any]) -> Any | None:
    """The game of a task's `world` block: `seed`, `rooms`, `objects`, `quest`, `theme`, `goal_only`.

    None when TextWorld finds no quest of that length in the world of the seed.
    """
    from textworld import GameOptions
    from textworld.generator import make_game
    from textworld.generator.chaining import QuestGenerationError

    options = GameOptions()
    options.kb = _knowledge()
    options.seeds = int(world["seed"])
    options.nb_rooms, options.nb_objects = world["rooms"], world["objects"]
    options.quest_length = world["quest"]
    options.grammar.theme, options.grammar.only_last_action = world["theme"], world["goal_only"]
    try:
        return make_game(options)
    except QuestGenerationError:
        return None


def load(file: Path) -> Any:
    """The game of a `.json` file, or of the one beside a `.z8` file.

    Raises:
        RecipeError: for a file that is not a game of TextWorld.
    """
    from textworld.generator.game import Game

    data = file.with_suffix(".json")
    if not data.is_file():
        raise RecipeError(f"hier.environment.data_path: {file} has no {data.name} beside it, which says its rules.")
    try:
        return Game.load(str(data))
    except (KeyError, TypeError, ValueError) as error:
        raise RecipeError(
            f"hier.environment.data_path: {data} is no game of TextWorld ({type(error).__name__}: {error})."
        ) from error


def fingerprint(game: Any) -> str:
    """Equal for games with equal rooms, things, names, places and quests."""
    facts = sorted(map(str, game.world.state.facts))
    names = sorted((info.id, str(info.name)) for info in game.infos.values())
    quests = [list(quest.commands) for quest in game.quests]
    text = json.dumps([facts, names, quests])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def cache_folder(option: str) -> Path:
    """The folder of compiled games."""
    if option:
        return Path(option).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-hier" / "textworld"


def compiled(game: Any, folder: Path) -> Path:
    """The Z-machine file of a game, named after its source; compiled (three seconds) when it is not there yet.

    Raises:
        RecipeError: when Inform 7, which comes with TextWorld, cannot run here or refuses the game.
    """
    from textworld.generator.inform7 import CouldNotCompileGameError, compile_inform7_game, generate_inform7_source

    source = generate_inform7_source(game)
    file = folder / f"{hashlib.blake2b(source.encode(), digest_size=12).hexdigest()}.z8"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    # Compiled elsewhere and renamed, so that an existing file is complete, also when two processes compile one game.
    with tempfile.TemporaryDirectory(dir=folder) as workshop:
        made = Path(workshop) / file.name
        try:
            compile_inform7_game(source, str(made))
        except (CouldNotCompileGameError, OSError) as error:
            raise RecipeError(
                "hier.environment.observation: `full` needs TextWorld's Inform 7 compiler, which failed "
                f"({str(error).strip() or type(error).__name__}); take `short`."
            ) from error
        made.replace(file)
    return file
