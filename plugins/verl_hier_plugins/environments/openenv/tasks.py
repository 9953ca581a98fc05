"""Tasks for an OpenEnv server: a seed each, or the arguments of its resets from a file."""

from __future__ import annotations

from typing import Any

from verl_hier.environments.splits import SPLITS
from verl_hier.environments.task_files import line_tasks
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.openenv.options import OpenenvOptions

DATA_SOURCE = "openenv"


def tasks(options: OpenenvOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order: `{instruction, reset, data_source, id}`.

    Raises:
        RecipeError: for an invalid file or line, and for a split without tasks.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: openenv has no split {split!r}; it has {', '.join(SPLITS)}.")
    if options.data_path:
        return line_tasks(
            options,
            split,
            DATA_SOURCE,
            lambda row, where: _checked(row, options.instruction, where),
            lambda line, task: line.strip(),
        )
    size = options.pool if split == "train" else options.validation
    common = {"instruction": options.instruction, "data_source": DATA_SOURCE}
    return [
        {**common, "reset": {"seed": number * len(SPLITS) + SPLITS.index(split)}, "id": f"{split}-{number:05d}"}
        for number in range(size)
    ]


def _checked(row: Any, instruction: str, where: str) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("reset", {}), dict):
        raise RecipeError(f"{where} is no task; `reset` is an object of arguments.")
    return {"instruction": str(row.get("instruction", instruction)), "reset": row.get("reset", {})}
