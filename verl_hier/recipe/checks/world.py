"""What an environment says of its tasks and answers: in its spec, or else by one reset."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.blocking import build
from verl_hier.errors import HierError, RecipeError
from verl_hier.host.part import Part
from verl_hier.host.specs import EnvironmentSpec
from verl_hier.recipe.checks.rule import value
from verl_hier.recipe.composed import ComposedRecipe

DATASET = "TaskDataset"
LOOK = """
import importlib.util, sys
print(next((name for name in sys.argv[1:] if importlib.util.find_spec(name.partition(".")[0]) is None), ""))
"""


def makes_tasks(config: Mapping[str, Any]) -> bool:
    """Whether the tasks come from the environment, not from a data set of verl."""
    return value(config, "data.custom_cls.name") == DATASET


def splits(config: Mapping[str, Any], line: str) -> list[str]:
    """The splits or files of `data.train_files` or `data.val_files`."""
    given = config["data"][line]
    return [given] if isinstance(given, str) else list(given or ())


def names_states(recipe: ComposedRecipe) -> bool:
    """Whether the environment's answers have an `anchor`; True where that cannot be found out before a run."""
    declared = recipe.parts.environment.spec.names_states
    if declared is not None:
        return bool(declared)
    answer = first_answer(recipe)
    return answer is None or answer.anchor is not None


def info_names(recipe: ComposedRecipe) -> set[str] | None:
    """Names in the `info` of a reset; None where they cannot be found out before a run."""
    declared = recipe.parts.environment.spec.info
    if declared is not None:
        return set(declared)
    answer = first_answer(recipe)
    return None if answer is None else set(answer.info)


def missing_module(spec: EnvironmentSpec, python: str = "") -> str:
    """A Python package that the environment needs and that is not installed, or empty; only looks, imports nothing.

    Args:
        spec: the environment.
        python: the interpreter that runs it, where it is another one; one that cannot be started has no package.
    """
    if python and spec.modules:
        return _missing_there(python, spec.modules)
    for name in spec.modules:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            return name
    return ""


def _missing_there(python: str, names: Sequence[str]) -> str:
    """The first of some packages that another interpreter does not have, or empty."""
    try:
        asked = subprocess.run(
            [Path(python).expanduser(), "-c", LOOK, *names], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return names[0]
    return asked.stdout.strip()


def first_task(recipe: ComposedRecipe) -> dict[str, Any] | None:
    """The first training task; None where tasks come from a data set, or the environment's packages are missing.

    Raises:
        RecipeError: when the environment cannot make its tasks.
    """
    environment = recipe.parts.environment
    if not makes_tasks(recipe.config) or environment.spec.tasks is None or missing_module(environment.spec):
        return None
    tasks = tasks_of(environment, splits(recipe.config, "train_files")[0], "train_files")
    return tasks[0] if tasks else None


def first_answer(recipe: ComposedRecipe) -> StepResult | None:
    """The answer to one reset with the first task.

    None where the tasks come from a data set, or the environment's packages are not installed, or it runs in another
    interpreter.

    Raises:
        RecipeError: when the environment makes no tasks or cannot be reset.
    """
    environment, task = recipe.parts.environment, first_task(recipe)
    if task is None or recipe.hier.rollout.process.python:
        return None
    try:
        world = build(environment.spec, environment.options)
        try:
            answer = world.reset(task, recipe.hier.seed or 0)
        finally:
            world.close()
    except HierError:
        raise
    except Exception as error:
        raise RecipeError(
            f"hier.environment.name: environment {environment.spec.name!r} cannot be reset: {_first_line(error)}"
        ) from error
    if not isinstance(answer, StepResult):
        raise RecipeError(
            f"hier.environment.name: environment {environment.spec.name!r} answers a reset with "
            f"{type(answer).__name__}, not with a StepResult."
        )
    return answer


def tasks_of(environment: Part, split: str, line: str) -> list[dict[str, Any]]:
    """The tasks of a split.

    Raises:
        RecipeError: naming `data.<line>`, when the environment raises while it makes them.
    """
    try:
        return list(environment.spec.tasks(environment.options, split))
    except HierError:
        raise
    except Exception as error:
        raise RecipeError(
            f"data.{line}: environment {environment.spec.name!r} makes no tasks for the split {split!r}: "
            f"{_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
