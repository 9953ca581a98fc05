"""Tasks for the tools of a server: those of a file, or generated ones for the sample server."""

from __future__ import annotations

from typing import Any

from verl_hier.environments.math_answers import require_math_verify
from verl_hier.environments.scoring import unfit
from verl_hier.environments.splits import SPLITS
from verl_hier.environments.task_files import line_tasks
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.mcp.house import house_tasks
from verl_hier_plugins.environments.mcp.options import McpOptions


def tasks(options: McpOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order.

    Each is `{instruction, opening, answers, check, data_source, id}`: calls to begin with, true answers, and a call
    that says whether the task is done; a task needs `answers`, `check` or a reward function of the recipe.

    Raises:
        RecipeError: for an invalid file or line, and for a split without tasks.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: mcp has no split {split!r}; it has {', '.join(SPLITS)}.")
    if options.scorer == "math_verify":
        require_math_verify("hier.environment.scorer")
    if not options.data_path:
        return house_tasks(options, split)
    return line_tasks(
        options,
        split,
        "mcp",
        lambda row, where: _checked(row, where, options.scorer),
        lambda line, task: str(task["instruction"]),
    )


def _checked(task: Any, where: str, scorer: str) -> dict[str, Any]:
    if not isinstance(task, dict) or not isinstance(task.get("instruction"), str):
        raise RecipeError(f"{where} is no task; it needs the text `instruction`.")
    if "answer" in task:
        task["answers"] = [str(task.pop("answer"))]
    answers = task.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(text, str) and text.strip() for text in answers):
        raise RecipeError(f"{where}: `answer` is a text, and `answers` a list of texts, none of them empty.")
    for answer in answers:
        if why := unfit(scorer, answer):
            raise RecipeError(f"{where}: the answer {answer!r:.60} {why} (hier.environment.scorer).")
    opening = task.get("opening", [])
    if not isinstance(opening, list):
        raise RecipeError(f"{where}: `opening` is a list of calls.")
    for call in (*opening, *([task["check"]] if "check" in task else ())):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise RecipeError(f"{where}: a call in `opening` or `check` needs the `name` of a tool, and `arguments`.")
    if "check" in task and not isinstance(task["check"].get("expect"), str):
        raise RecipeError(f"{where}: `check` needs `expect`, a text that its answer contains when the task is done.")
    return task
