"""Tasks for agents: those of a file, or generated ones for the sample agent."""

from __future__ import annotations

import json
from typing import Any

from verl_hier.environments.scoring import unfit
from verl_hier.environments.splits import SPLITS, held_out
from verl_hier.environments.task_files import line_tasks
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.gateway.agent import require_agent
from verl_hier_plugins.environments.gateway.options import SCORERS, GatewayOptions
from verl_hier_plugins.environments.gateway.samples import sample_of
from verl_hier_plugins.environments.gateway.scoring import scorer_of


def tasks(options: GatewayOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order: `{instruction, answers, data_source, id}` and what the agent needs.

    Raises:
        RecipeError: for an invalid file or line, and for a split without tasks.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: gateway has no split {split!r}; it has {', '.join(SPLITS)}.")
    limit = options.pool if split == "train" else options.validation
    require_agent(options)
    scorer_of(options)
    if not options.data_path:
        return _houses(options, split, limit)
    return line_tasks(
        options,
        split,
        "gateway",
        lambda row, where: _checked(row, options, where),
        lambda line, task: json.dumps(task, sort_keys=True),
    )


def _houses(options: GatewayOptions, split: str, size: int) -> list[dict[str, Any]]:
    house = sample_of(options).house
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    # At least 3600 different tasks; a hundred thousand numbers name all but a few of them.
    for number in range(100_000):
        rooms, thing, room = house(number)
        if len(found) == size:
            break
        # The same house with its rooms in another order is no other task, in whichever split it was seen.
        content = json.dumps([rooms, thing], sort_keys=True)
        if content in seen:
            continue
        seen.add(content)
        if held_out(f"{rooms} {thing}") != split:
            continue
        task = {"instruction": f"find {thing}", "rooms": rooms, "answers": [room], "goal": thing}
        found.append({**task, "data_source": "gateway", "id": f"{split}-{len(found):05d}"})
    return found


def _checked(task: Any, options: GatewayOptions, where: str) -> dict[str, Any]:
    if not isinstance(task, dict) or not isinstance(task.get("instruction"), str):
        raise RecipeError(f"{where} is no task; it needs the text `instruction`.")
    if "answer" in task:
        task["answers"] = [task.pop("answer")]
    answers = task.get("answers")
    if options.scorer in SCORERS and not (isinstance(answers, list) and answers):
        raise RecipeError(f"{where} has no `answer`, which the scorer {options.scorer} needs.")
    if answers is not None:
        task["answers"] = [str(answer) for answer in answers] if isinstance(answers, list) else [str(answers)]
    for answer in task.get("answers", ()) if options.scorer in SCORERS else ():
        if why := unfit(options.scorer, answer):
            raise RecipeError(f"{where}: the answer {answer!r:.60} {why} (hier.environment.scorer).")
    return task
