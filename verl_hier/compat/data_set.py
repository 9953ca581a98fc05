"""verl's own data sets outside of the trainer: the tasks of a Parquet file, and the score of an answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import parquet_rows
from verl_hier.rollout.rewards import RatedEpisode


def prompt_tasks(config: Any, files: str | Sequence[str]) -> list[dict[str, Any]]:
    """The rows of verl's Parquet files as tasks of an environment without tasks of its own.

    Args:
        config: the whole composed verl configuration; `data.prompt_key` names the column of the messages.
        files: one file, or several.

    Raises:
        RecipeError: when a file is missing or has no such column.
    """
    key, tasks = str(config["data"].get("prompt_key", "prompt")), []
    for file in [files] if isinstance(files, str) else list(files):
        path = Path(file).expanduser()
        if not path.is_file():
            raise RecipeError(f"data.val_files: there is no file {file}; name a Parquet file there, or as the split.")
        try:
            tasks += [_task(row, key, str(file)) for row in parquet_rows(path)]
        except FileError as error:
            raise RecipeError(f"data.val_files: {error}") from error
    return tasks


def _task(row: dict[str, Any], key: str, file: str) -> dict[str, Any]:
    if key not in row:
        raise RecipeError(f"data.prompt_key: {file} has no column {key!r}; it has {', '.join(row)}.")
    messages = row[key]
    fit = isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
    if not fit or not all(isinstance(message.get(name), str) for message in messages for name in ("role", "content")):
        raise RecipeError(f"data.prompt_key: column {key!r} of {file} does not hold messages of `role` and `content`.")
    known = {name: row.get(name) for name in ("data_source", "reward_model", "extra_info")}
    if not isinstance(known["reward_model"], dict | None):
        raise RecipeError(f"data.val_files: column 'reward_model' of {file} does not hold mappings.")
    return {"messages": messages, "instruction": messages[-1]["content"], **known}


def verl_score(config: Any) -> Callable[[RatedEpisode], Coroutine[Any, Any, float]]:
    """verl's score of an answer as a reward function: `reward.custom_reward_function`, or the one for the data source.

    As verl's reward manager `naive` calls it (verl/experimental/reward_loop/reward_manager/naive.py).
    """
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import default_compute_score

    compute = get_custom_reward_fn(config) or default_compute_score

    async def score(episode: RatedEpisode) -> float:
        task = episode.task
        given = {
            "data_source": task["data_source"],
            "solution_str": episode.text,
            "ground_truth": (task["reward_model"] or {}).get("ground_truth"),
            "extra_info": task["extra_info"],
        }
        if inspect.iscoroutinefunction(compute):
            result = await compute(**given)
        else:
            result = await asyncio.get_running_loop().run_in_executor(None, lambda: compute(**given))
        return float(result["score"] if isinstance(result, dict) else result)

    return score
