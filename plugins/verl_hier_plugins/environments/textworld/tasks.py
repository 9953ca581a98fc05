"""Task pools: generated games, each in the split that its content determines, and the games of a folder."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hier.environments.splits import SPLITS, draw_tasks, split_of
from verl_hier.errors import RecipeError
from verl_hier.rollout.seeds import derive
from verl_hier_plugins.environments.textworld.engine import plain
from verl_hier_plugins.environments.textworld.making import fingerprint, generate, load
from verl_hier_plugins.environments.textworld.options import FOLDERS, TextworldOptions

DATA_SOURCE = "textworld"
TRIED = 20
"""Number of games that are tried before the options count as impossible."""

Numbers = tuple[tuple[str, Any], ...]


def tasks(options: TextworldOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order.

    A generated task is `{instruction, data_source, id, world}`; one of a folder has `game` (a path below it) instead
    of `world`.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: textworld has no split {split!r}; it has {', '.join(SPLITS)}.")
    wanted = options.pool if split == "train" else options.validation
    if options.data_path:
        found = itertools.islice(_files(options, split), wanted or None)
        listed = [{"id": f"{split}-{number:05d}", **task} for number, task in enumerate(found, start=1)]
        if not listed:
            raise RecipeError(
                f"hier.environment.data_path: no game for the split {split!r} in {options.data_path}; name a folder "
                f"{split!r} there, or add games."
            )
        return listed
    if not any(_made(_numbers(options, draw))[0] for draw in range(TRIED)):
        raise RecipeError(
            f"hier.environment.quest_length: TextWorld finds no quest of {options.quest_length} actions in "
            f"{options.world_size} rooms; take a shorter one or more rooms."
        )

    def make(draw: int, number: int) -> tuple[str, dict[str, Any]] | None:
        numbers = _numbers(options, draw)
        content, full, short = _made(numbers)
        sentence = full if options.observation == "full" else short
        task = {"instruction": sentence, "data_source": DATA_SOURCE, "world": dict(numbers)}
        return (content, task) if content else None

    return draw_tasks(make, split, wanted, "textworld")


def _numbers(options: TextworldOptions, draw: int) -> Numbers:
    """A task's `world` block; see `making.generate`."""
    return (
        ("seed", derive(options.seed, DATA_SOURCE, draw)),
        ("rooms", options.world_size),
        ("objects", options.nb_objects),
        ("quest", options.quest_length),
        ("theme", options.theme),
        ("goal_only", options.instruction == "goal"),
    )


# All splits draw the same games, and generating one takes 20 milliseconds.
@functools.lru_cache(maxsize=1 << 14)
def _made(numbers: Numbers) -> tuple[str, str, str]:
    """Fingerprint and both instructions of a generated game; empty when it cannot be generated."""
    block = dict(numbers)
    game = generate(block)
    if game is None:
        return "", "", ""
    return fingerprint(game), str(game.objective), short_instruction(game, block["goal_only"])


def short_instruction(game: Any, goal_only: bool) -> str:
    """The quest as plain commands: `go south ; take key ; unlock chest with key`."""
    steps = [[plain(command) for command in quest.commands] for quest in game.quests if quest.commands]
    if not steps:
        return plain(str(game.objective))
    if goal_only:
        return " ; ".join(commands[-1] for commands in steps)
    return " ; ".join(map(plain, game.walkthrough or itertools.chain(*steps)))


def _files(options: TextworldOptions, split: str) -> Iterator[dict[str, Any]]:
    root = Path(options.data_path).expanduser()
    if not root.is_dir():
        raise RecipeError(f"hier.environment.data_path: {root} is no folder.")
    for file in _games(root):
        relative = file.relative_to(root)
        # A folder that is named after a split determines the split, otherwise the content does.
        named = next((FOLDERS[part] for part in relative.parts[:-1] if part in FOLDERS), None)
        game = load(file) if named in (None, split) else None
        if game is None or (named or split_of(fingerprint(game))) != split:
            continue
        full = options.observation == "full"
        instruction = str(game.objective) if full else short_instruction(game, options.instruction == "goal")
        yield {"instruction": instruction, "data_source": DATA_SOURCE, "game": relative.as_posix()}


def _games(root: Path) -> Iterator[Path]:
    """The games of a folder; the `.json` beside a compiled game is not another one."""
    compiled = {file.with_suffix("") for file in root.rglob("*.z8")}
    glulx = {file.with_suffix("") for file in root.rglob("*.ulx")} - compiled
    if glulx and not any(file.with_suffix(".json").is_file() for file in glulx):
        raise RecipeError(
            f"hier.environment.data_path: {sorted(glulx)[0]}.ulx is a Glulx game, which TextWorld no longer plays; "
            "make it again as .z8."
        )
    for file in sorted(compiled | {file.with_suffix("") for file in root.rglob("*.json")}):
        yield file.with_suffix(".z8" if file in compiled else ".json")
