"""Tasks of a JSONL file that a recipe names, for environments with `data_path`, `validation_path`, `pool` and
`validation`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_hier.environments.splits import held_out
from verl_hier.errors import RecipeError
from verl_hier.graph.bounded_reading import parse_json, text_lines


def line_tasks(
    options: Any,
    split: str,
    data_source: str,
    checked: Callable[[Any, str], dict[str, Any]],
    told_by: Callable[[str, dict[str, Any]], str],
) -> list[dict[str, Any]]:
    """The tasks of a split, in the order of their lines.

    Args:
        options: the options of the environment.
        split: the split; one file serves all of them where `validation_path` is empty.
        data_source: the `data_source` of tasks that have none.
        checked: `checked(row, where)` returns the task of a line, or raises `RecipeError`, whose sentence begins with
            `where`.
        told_by: `told_by(line, task)` is the text that decides the split of a task in such a file.

    Raises:
        RecipeError: for a missing file, a line that `checked` refuses, and a split without tasks.
        FileError: for a line that is no JSON.
    """
    option = "validation_path" if split != "train" and options.validation_path else "data_path"
    most = options.pool if split == "train" else options.validation
    file = Path(getattr(options, option)).expanduser()
    if not file.is_file():
        raise RecipeError(f"hier.environment.{option}: there is no file {file}.")
    found: list[dict[str, Any]] = []
    for number, line in text_lines(file):
        row = parse_json(line, f"line {number} of {file}")
        task = checked(row, f"hier.environment.{option}: line {number}")
        if options.validation_path or held_out(told_by(line, task)) == split:
            found.append({"data_source": data_source, "id": f"{split}-{len(found):05d}", **task})
        if len(found) == most > 0:
            break
    if not found:
        raise RecipeError(f"hier.environment.{option}: {file} has no task for the split {split!r}.")
    return found
