"""Tasks for an OpenEnv server: a seed each, or the arguments of its resets from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl_hier.environments.splits import SPLITS, hash_number
from verl_hier.errors import RecipeError
from verl_hier.graph.bounded_reading import parse_json, text_lines
from verl_hier_plugins.environments.openenv.options import OpenenvOptions

DATA_SOURCE = "openenv"


def tasks(options: OpenenvOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order: `{instruction, reset, data_source, id}`.

    Raises:
        RecipeError: for an invalid file or line, and for a split without tasks.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: openenv has no split {split!r}; it has {', '.join(SPLITS)}.")
    size = options.pool if split == "train" else options.validation
    if options.data_path:
        return _of_file(options, split, size)
    seeds = (number * len(SPLITS) + SPLITS.index(split) for number in range(size))
    return [_task(options.instruction, {"seed": seed}, f"{split}-{n:05d}") for n, seed in enumerate(seeds)]


def _of_file(options: OpenenvOptions, split: str, size: int) -> list[dict[str, Any]]:
    option = "validation_path" if split != "train" and options.validation_path else "data_path"
    file = Path(getattr(options, option)).expanduser()
    if not file.is_file():
        raise RecipeError(f"hier.environment.{option}: there is no file {file}.")
    found: list[dict[str, Any]] = []
    for number, line in text_lines(file):
        row = parse_json(line, f"line {number} of {file}")
        if not isinstance(row, dict) or not isinstance(row.get("reset", {}), dict):
            raise RecipeError(
                f"hier.environment.{option}: line {number} is no task; `reset` is an object of arguments."
            )
        if options.validation_path or _held_out(line) == split:
            instruction = str(row.get("instruction", options.instruction))
            found.append(_task(instruction, row.get("reset", {}), f"{split}-{len(found):05d}"))
        if len(found) == size > 0:
            break
    if not found:
        raise RecipeError(f"hier.environment.{option}: {file} has no task for the split {split!r}.")
    return found


def _task(instruction: str, reset: dict[str, Any], name: str) -> dict[str, Any]:
    return {"instruction": instruction, "reset": reset, "data_source": DATA_SOURCE, "id": name}


def _held_out(line: str) -> str:
    """The split of a task when one file serves all splits: a tenth each for `val` and `test`."""
    return {0: "val", 1: "test"}.get(hash_number(line.strip(), 4) % 10, "train")
