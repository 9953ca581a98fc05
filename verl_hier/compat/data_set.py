"""verl's own data sets outside of the trainer: the tasks of a file, and the score of an answer."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, RecipeError, RolloutError
from verl_hier.recipe.data_rows import data_rows, row_problem
from verl_hier.rollout.rewards import RatedEpisode


def prompt_tasks(config: Any, files: str | Sequence[str]) -> list[dict[str, Any]]:
    """The rows of verl's data files as tasks of an environment without tasks of its own.

    Args:
        config: the whole composed verl configuration; `data.prompt_key` names the column of the messages.
        files: one file, or several.

    Raises:
        RecipeError: when a file is missing or has a row that cannot be played.
    """
    key, tasks = str(config["data"].get("prompt_key", "prompt")), []
    for file in [files] if isinstance(files, str) else list(files):
        path = Path(file).expanduser()
        if not path.is_file():
            raise RecipeError(f"data.val_files: there is no file {file}; name a data file there, or as the split.")
        try:
            for number, row in enumerate(data_rows(path)):
                problem = row_problem(row, config, tools=False)
                if problem:
                    raise RecipeError(f"data.val_files: row {number} of {file} {problem}")
                known = {name: row.get(name) for name in ("data_source", "reward_model", "extra_info")}
                tasks.append({"messages": row[key], "instruction": row[key][-1]["content"], **known})
        except FileError as error:
            raise RecipeError(f"data.val_files: {error}") from error
    return tasks


def score_of(value: Any) -> float:
    """The score that a reward function of verl's form has returned.

    Raises:
        RolloutError: when it is no finite number.
    """
    number = _number(value)
    if number is None or not math.isfinite(number):
        raise RolloutError(
            f"reward.custom_reward_function: the reward function returned the score {value!r:.60}, which is no number."
        )
    return number


def parted(info: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """The finite numbers of any type, and the texts, of what a reward function has returned; other values are left
    out."""
    numbers = {str(name): number for name, value in info.items() if (number := _number(value)) is not None}
    finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
    return finite, {str(name): str(value) for name, value in info.items() if isinstance(value, str)}


def _number(value: Any) -> float | None:
    """A number of Python, numpy, torch or `decimal`, or an array of one without dimensions; None for anything else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


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
        return score_of(result["score"] if isinstance(result, dict) else result)

    return score
