"""Repositories for programs behind the gateway: tasks with the files of a folder, and what a folder is worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.repository.judge import passes
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.repositories import repository_of
from verl_hier_plugins.environments.repository.tasks import tasks
from verl_hier_plugins.environments.repository.workspace import BadChange, Workspace

LIMIT_S = 2
"""Processor seconds of the hidden cases."""


def program_tasks(options: RepositoryOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split for the gateway's `data_path`: `{instruction, files, result, repository}`.

    Args:
        options: those of the environment `repository`.
        split: `train`, `val` or `test`.

    Returns:
        `files` has the text of each file of the workspace by its path, and `result` is `files`: what a program has to
        give back. `repository` has what the hidden tests follow from, so a recipe hides it from the program.
    """
    found = []
    for task in tasks(options, split):
        made = repository_of(task)
        assert made is not None
        told = task["instruction"].partition(". Mend")[0]
        instruction = (
            f"{told}. Mend the package in this folder; hidden tests decide, so edits of the tests have no effect."
        )
        found.append({"instruction": instruction, "files": dict(made.broken), "result": "files", "repository": task})
    return found


def score(task: Mapping[str, Any], result: str) -> float:
    """1 where a package passes the hidden tests, else 0; a scorer of the gateway.

    Args:
        task: one of `program_tasks`.
        result: what the program gave back: JSON of the text of each file by its path. Files outside of the package have
            no effect.

    Raises:
        RecipeError: for another task.
    """
    made = repository_of(task["repository"]) if "repository" in task else None
    if made is None:
        raise RecipeError("hier.environment.scorer: that is no task of `program_tasks`.")
    files, package = Workspace({}), f"{made.package}/"
    try:
        for path, text in json.loads(result).items():
            if path.startswith(package) and path.endswith(".py"):
                files = files.with_file(path, text)
    except (ValueError, TypeError, AttributeError, RecursionError, BadChange):
        return 0.0
    return float(passes(files, made.package, made.hidden, LIMIT_S))
