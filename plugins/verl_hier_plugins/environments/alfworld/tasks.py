"""Task pools: generated ones, disjoint by construction, and the games of ALFWorld's data set."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.graph.bounded_reading import read_text
from verl_hier_plugins.environments.alfworld.goals import LARGEST_FILE
from verl_hier_plugins.environments.alfworld.grammar import TASK_SENTENCE
from verl_hier_plugins.environments.alfworld.options import SPLITS, AlfworldOptions
from verl_hier_plugins.environments.alfworld.world import GOALS, build_world, split_of

DATA_SOURCE = "alfworld"
GAME = "game.tw-pddl"
_TRIAL = re.compile(r"^([a-z_]+)-")
_SOLVABLE = re.compile(r'"solvable"\s*:\s*true')


def tasks(options: AlfworldOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order.

    A generated task is `{instruction, data_source, id, horizon, world}`; one of the data set has `game` (a path below
    the data root) instead of `world`. The horizon is the number of goals.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: alfworld has no split {split!r}; it has {', '.join(SPLITS)}.")
    if options.source == "dataset":
        return _games(options, SPLITS[split])
    size = options.pool if split == "train" else options.validation
    return list(itertools.islice(_generated(options, SPLITS[split]), size))


def _generated(options: AlfworldOptions, split: str) -> Iterator[dict[str, Any]]:
    """Draw worlds and keep those of the split; tasks alternate between goal counts and first goal types."""
    receptacles, objects = options.size
    rng = random.Random(f"kinds-{options.seed}-{split}")
    seen: set[str] = set()
    kinds = _kinds(options, 0, rng)
    for draw in itertools.count():
        block = {
            "seed": f"{options.seed}.{draw}",
            "kinds": kinds,
            "receptacles": receptacles,
            "objects": objects,
        }
        world = build_world(block)
        if split_of(world) != split or world.fingerprint in seen:
            continue
        yield {
            "instruction": world.instruction,
            "data_source": DATA_SOURCE,
            "id": f"{split}-{len(seen):05d}",
            "horizon": len(kinds),
            "world": block,
        }
        seen.add(world.fingerprint)
        kinds = _kinds(options, len(seen), rng)


def _kinds(options: AlfworldOptions, number: int, rng: random.Random) -> list[str]:
    """Goal types of the `number`-th task, in the order in which its instruction names them."""
    counts, types = options.goal_counts, options.goal_types
    count = counts[number % len(counts)]
    first = types[number // len(counts) % len(types)]
    # The goal `look` needs the hand until the end, so there is at most one, and it comes last.
    others = [kind for kind in types if kind != "look"]
    kinds = [first] if count == 1 else [first, *rng.choices(others, k=count - 1)]
    rng.shuffle(kinds)
    return sorted(kinds, key=lambda kind: kind == "look")


def data_root(options: AlfworldOptions) -> Path:
    """The directory that holds the splits of ALFWorld's download."""
    root = options.data or os.environ.get("ALFWORLD_DATA") or str(Path.home() / ".cache" / "alfworld")
    path = Path(root).expanduser()
    return path / "json_2.1.1" if (path / "json_2.1.1").is_dir() else path


def _games(options: AlfworldOptions, split: str) -> list[dict[str, Any]]:
    root = data_root(options)
    folder = root / split
    if not folder.is_dir():
        raise RecipeError(
            f"hier.environment.data: no ALFWorld games in {folder}. Run `alfworld-download` (about 2 GB) and set "
            "`hier.environment.data` to its directory, or use `hier.environment.source: generated`."
        )
    limit = options.pool if split == "train" else options.validation
    wanted = {GOALS[kind] for kind in options.goal_types}
    found: list[dict[str, Any]] = []
    for file in sorted(folder.rglob(GAME)):
        relative = file.relative_to(root).as_posix()
        named = _TRIAL.match(file.parent.parent.name)
        if named is None or named.group(1) not in wanted:
            continue
        sentence = _solvable_task(file)
        if sentence is None:
            continue
        found.append(
            {
                "instruction": sentence,
                "data_source": DATA_SOURCE,
                "id": f"{split}-{len(found):05d}",
                "horizon": 1,
                "game": relative,
            }
        )
        if limit and len(found) == limit:
            break
    if not found:
        raise RecipeError(f"hier.environment.goal_types: no solvable game of these types in {folder}.")
    return found


def _solvable_task(file: Path) -> str | None:
    """The task sentence of a game that ALFWorld marked as solvable, without parsing the whole file."""
    text = read_text(file, LARGEST_FILE)
    # The grammar is a JSON string inside the JSON file, so its quotes are escaped.
    sentence = TASK_SENTENCE.search(text.replace('\\"', '"'))
    return sentence.group(1) if sentence and _SOLVABLE.search(text) else None
