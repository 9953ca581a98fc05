"""Tasks that are not there: splits, batches larger than the pool, data sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from verl_hier.environments.surroundings import ProcessOptions, secrets_of
from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.checks.world import makes_tasks, splits, tasks_of
from verl_hier.recipe.cluster import joins_cluster
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.curriculum import Curriculum

LINES = ("train_files", "val_files")
HELD_OUT = ("val", "valid", "validation", "valid_seen", "valid_unseen", "dev", "test")
"""Names of splits that are for measuring."""


@rule
def check_source(recipe: ComposedRecipe) -> None:
    """Refuse an environment without tasks of its own where the recipe asks it for them, and data files beside one that
    makes its own."""
    environment = recipe.parts.environment.spec
    if not makes_tasks(recipe.config) and environment.tasks is not None and not _own_class(recipe):
        raise RecipeError(
            f"data.custom_cls: environment {environment.name!r} makes its own tasks, and verl's data set would read "
            "data files in their place; set data.custom_cls to {path: pkg://verl_hier.compat.dataset, name: "
            "TaskDataset} (hier/base has it, hier/method: flat takes it away), or take hier.environment.name: prompt."
        )
    if makes_tasks(recipe.config) and environment.tasks is None:
        raise RecipeError(
            f"data.custom_cls: environment {environment.name!r} makes no tasks of its own; set data.custom_cls.path "
            "and data.custom_cls.name to null and name parquet files in data.train_files and data.val_files."
        )


def _own_class(recipe: ComposedRecipe) -> bool:
    """Whether a data set class of the user's own makes the tasks."""
    name, path = (value(recipe.config, f"data.custom_cls.{key}") for key in ("name", "path"))
    return bool(name and path)


@rule
def check_splits(recipe: ComposedRecipe) -> None:
    """Refuse a split that the environment does not have, and data without a single file."""
    spec = recipe.parts.environment.spec
    for line in LINES:
        given = splits(recipe.config, line)
        if not given:
            raise RecipeError(f"data.{line}: it names nothing; name a split of the environment or a data file.")
        for split in given if makes_tasks(recipe.config) and spec.splits is not None else ():
            if split not in spec.splits:
                raise RecipeError(
                    f"data.{line}: environment {spec.name!r} has no split {split!r}{did_you_mean(split, spec.splits)}; "
                    f"it has {', '.join(spec.splits)}."
                )


@rule
def check_held_out(recipe: ComposedRecipe) -> None:
    """Refuse training on a split that is for measuring, or on the one that is measured."""
    if not makes_tasks(recipe.config):
        return
    train, measured = splits(recipe.config, "train_files"), splits(recipe.config, "val_files")
    for split in train:
        if split in HELD_OUT or split in measured:
            raise RecipeError(
                f"data.train_files: {split!r} is {'what data.val_files measures' if split in measured else 'held out'}"
                ", so the measured success would say nothing; train on another split."
            )


@rule
def check_batch(recipe: ComposedRecipe) -> None:
    """Refuse a batch that is larger than the pool of tasks."""
    environment, batch = recipe.parts.environment, int(value(recipe.config, "data.train_batch_size"))
    if not makes_tasks(recipe.config) or environment.spec.pool is None:
        return
    found = sum(environment.spec.pool(environment.options, split) for split in splits(recipe.config, "train_files"))
    limit = int(value(recipe.config, "data.train_max_samples") or -1)
    line = "data.train_batch_size"
    if 0 < limit < batch:
        raise RecipeError(f"{line}: a step takes {batch} tasks, and data.train_max_samples keeps {limit}; lower it.")
    if found < batch:
        raise RecipeError(
            f"{line}: a step takes {batch} tasks, and environment {environment.spec.name!r} has {found:g} in "
            f"{', '.join(splits(recipe.config, 'train_files'))}; lower it or ask hier.environment for more."
        )


@rule
def check_outside(recipe: ComposedRecipe) -> None:
    """Refuse options of an environment that name a program, function or secret which is not there."""
    environment = recipe.parts.environment
    defaults = {option.name: option.default for option in dataclasses.fields(environment.options)}
    named = [name for name in environment.spec.outside if getattr(environment.options, name) != defaults[name]]
    if named and makes_tasks(recipe.config) and environment.spec.tasks is not None:
        for line in LINES:
            for split in splits(recipe.config, line):
                tasks_of(environment, split, line)
    if not joins_cluster(recipe.config):
        ProcessOptions(secrets=secrets_of(environment.spec, environment.options)).environ()


@rule
def check_curriculum(recipe: ComposedRecipe) -> None:
    """Refuse a curriculum over tasks that hier.environment does not make."""
    if recipe.hier.curriculum.horizons and not makes_tasks(recipe.config):
        raise RecipeError("hier.curriculum: only tasks that hier.environment makes have a horizon; remove it.")


@rule
def check_files(recipe: ComposedRecipe) -> None:
    """Refuse a Python file of the recipe that is not there: a data set's class or a reward function."""
    for line in ("data.custom_cls.path", "reward.custom_reward_function.path"):
        path = value(recipe.config, line)
        if path and not str(path).startswith("pkg://") and not Path(str(path)).expanduser().is_file():
            raise RecipeError(f"{line}: there is no file {str(path)!r}.")


def require_tasks(recipe: ComposedRecipe) -> None:
    """Refuse splits that are empty or too small for a step. Makes the tasks, so the environment's data must be there.

    Raises:
        RecipeError: naming the line.
    """
    if not makes_tasks(recipe.config):
        return
    environment, batch = recipe.parts.environment, int(value(recipe.config, "data.train_batch_size"))
    for line, least in zip(LINES, (batch, 1), strict=True):
        given = splits(recipe.config, line)
        found = [task for split in given for task in tasks_of(environment, split, line)]
        if len(found) < least:
            raise RecipeError(
                f"data.{'train_batch_size' if least > 1 else line}: a step takes {least} tasks, and environment "
                f"{environment.spec.name!r} has {len(found)} in {', '.join(given)}; lower it or ask hier.environment "
                "for more."
            )
        if line == "train_files" and recipe.hier.curriculum.horizons:
            Curriculum(recipe.hier.curriculum, found)
