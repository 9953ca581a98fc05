"""Rows of verl's own data sets: what is read of a file, and what a row needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError
from verl_hier.graph.bounded_reading import parquet_rows, parse_json, read_json, text_lines
from verl_hier.installed import package_folder

FORMATS = (".parquet", ".jsonl", ".json")
"""What verl's data set class reads (verl/utils/dataset/rl_dataset.py, `RLHFDataset._read_files_and_tokenize`)."""
MEDIA = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}
"""Lines of `data` that name a column, and verl's default for it."""
DEFAULT_SCORE = "default_compute_score"
"""verl's choice of a reward function by the data source (verl/utils/reward_score/__init__.py)."""


def data_rows(file: Path, most: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file that verl's data set class reads.

    Args:
        file: a Parquet file, JSONL, or a JSON file with one list.
        most: how many rows to read at most; None for all.

    Raises:
        FileError: when it cannot be read, or is none of these.
    """
    if file.suffix not in FORMATS:
        raise FileError(f"{file} ends in none of {', '.join(FORMATS)}, which verl's data set reads.")
    if file.suffix == ".parquet":
        found: Iterator[Any] = parquet_rows(file, places=None if most is None else range(most))
    elif file.suffix == ".jsonl":
        found = (parse_json(line, f"line {number} of {file}", repair=True) for number, line in text_lines(file))
    else:
        whole = read_json(file, repair=True)
        found = iter(whole if isinstance(whole, list) else [whole])
    for number, row in enumerate(islice(found, most)):
        if not isinstance(row, dict):
            raise FileError(f"row {number} of {file} is no object but {row!r:.60}.")
        yield row


def row_problem(row: Mapping[str, Any], config: Mapping[str, Any], tools: bool) -> str:
    """Why a row cannot be rolled out and scored, as the end of a sentence that names the file; empty when it can.

    Args:
        row: as the file has it.
        config: the whole composed verl configuration.
        tools: whether the environment calls verl's tools.
    """
    data = config["data"]
    key = data.get("prompt_key", "prompt")
    if key not in row:
        instead = "; hier.environment.data_path of python_tool, search and retrieval reads questions and answers"
        return f"has no column {key!r}, which data.prompt_key names; it has {', '.join(row)}{instead}."
    messages = row[key]
    fit = isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
    if not fit or not all(isinstance(message.get("role"), str) and "content" in message for message in messages):
        return f"does not hold messages of `role` and `content` in its column {key!r}, which data.prompt_key names."
    media = [column for line, name in MEDIA.items() for column in [data.get(line, name)] if row.get(column)]
    if media or not all(isinstance(message["content"], str) for message in messages):
        what = f"has {media[0]}" if media else "has messages of more than text"
        return f"{what}, and verl-hier hands text alone to the policy."
    return _agent_problem(row, tools) or _score_problem(row, config)


def _agent_problem(row: Mapping[str, Any], tools: bool) -> str:
    """What a row asks of verl's own agent loops that an environment of ours does not do."""
    known, agent = row.get("extra_info"), row.get("agent_name")
    known = known if isinstance(known, Mapping) else {}
    if known.get("interaction_kwargs"):
        return (
            "asks for an interaction (`extra_info.interaction_kwargs`), which verl has no more since 0.8; make the "
            "other side a tool, or an environment of yours."
        )
    if not tools and (known.get("tools_kwargs") or agent not in (None, "", "single_turn_agent")):
        asked = "tools (`extra_info.tools_kwargs`)" if known.get("tools_kwargs") else f"the agent loop {agent!r}"
        return f"asks for {asked}, which this environment does not have; take hier/environment: verl_tools."
    return ""


def _score_problem(row: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """What verl's reward function lacks in a row (verl/experimental/reward_loop/reward_manager/naive.py)."""
    reward = config.get("reward") or {}
    model, source = row.get("reward_model"), row.get("data_source")
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        return "has no `reward_model` with a `ground_truth`, which verl's reward functions are given."
    if source is None:
        return "has no `data_source`, by which verl chooses a reward function."
    own = (reward.get("custom_reward_function") or {}).get("path")
    if own or (reward.get("reward_model") or {}).get("enable"):
        return ""
    if not scored_by_verl(str(source)):
        return (
            f"has the data source {source!r}, for which verl has no reward function; name yours in "
            "reward.custom_reward_function.path."
        )
    truth = model["ground_truth"]
    if isinstance(truth, Mapping) if str(source).startswith("searchR1_") else isinstance(truth, str | Mapping):
        return ""
    return (
        f"has the ground truth {truth!r:.60}, which equals no answer in verl's reward function for {source!r}; "
        "name yours in reward.custom_reward_function.path."
    )


@cache
def scored_by_verl(source: str) -> bool:
    """Whether verl has a reward function for a data source, by the conditions in verl's own file.

    verl is not imported, which would take ten seconds, where a check of a recipe takes one.
    """
    file = package_folder("verl") / "utils" / "reward_score" / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    chosen = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == DEFAULT_SCORE)
    branch = next((node for node in chosen.body if isinstance(node, ast.If)), None)
    while branch is not None:
        if eval(compile(ast.Expression(branch.test), "verl", "eval"), {"data_source": source}):
            return True
        inner = branch.orelse
        branch = inner[0] if len(inner) == 1 and isinstance(inner[0], ast.If) else None
    return False
