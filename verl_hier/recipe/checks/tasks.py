"""Where do the tasks come from, and are there enough of them for a step?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.errors import HierError, RecipeError
from verl_hier.recipe.parts import Part
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.curriculum import Curriculum

DATASET = "TaskDataset"


def check_source(config: Mapping[str, Any], environment: Part) -> None:
    """Refuse an environment without tasks of its own where the recipe asks it for them."""
    if _from_environment(config) and environment.spec.tasks is None:
        raise RecipeError(
            f"data.custom_cls: environment {environment.spec.name!r} makes no tasks of its own; set "
            f"data.custom_cls.path "
            "and data.custom_cls.name to null and name parquet files in data.train_files and data.val_files."
        )


def check_tasks(config: Mapping[str, Any], environment: Part) -> None:
    """Refuse splits that are empty or too small for a step; makes the tasks, so the world's data must be there."""
    if not _from_environment(config):
        return
    wanted = {"train_files": int(config["data"]["train_batch_size"]), "val_files": 1}
    for line, least in wanted.items():
        splits = config["data"][line]
        splits = [splits] if isinstance(splits, str) else list(splits)
        found = sum(len(_tasks(environment, split, line)) for split in splits)
        if found < least:
            raise RecipeError(
                f"data.train_batch_size: a step takes {least} tasks, and environment {environment.spec.name!r} has "
                f"{found} in "
                f"{', '.join(splits)}; lower it or ask hier.environment for more."
            )


def check_curriculum(config: Mapping[str, Any], hier: HierConfig, environment: Part) -> None:
    """Refuse a curriculum over tasks that do not say how long they are; makes the tasks."""
    if not hier.curriculum.horizons:
        return
    if not _from_environment(config):
        raise RecipeError("hier.curriculum: only tasks that hier.environment makes have a horizon; remove it.")
    splits = config["data"]["train_files"]
    splits = [splits] if isinstance(splits, str) else list(splits)
    Curriculum(hier.curriculum, [task for split in splits for task in _tasks(environment, split, "train_files")])


def _tasks(environment: Part, split: str, line: str) -> list[dict[str, Any]]:
    try:
        return list(environment.spec.tasks(environment.options, split))
    except HierError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecipeError(
            f"data.{line}: environment {environment.spec.name!r} makes no tasks for the split {split!r}: {first}"
        ) from error


def _from_environment(config: Mapping[str, Any]) -> bool:
    return (config["data"].get("custom_cls") or {}).get("name") == DATASET
