"""Stored rollouts as verl's trainers dump theirs, and back."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_hier.graph import TURN_COLUMNS, Message, RolloutGraph, dump_rows, read_graphs
from verl_hier.ops.exchange.build import action_tokens, add_episode, add_turn, checked, graph_of
from verl_hier.ops.exchange.files import Line, read_lines, write_lines
from verl_hier.rollout.plain_renderer import Tokenizer
from verl_hier.training.schedule import Phase

PathLike = str | os.PathLike[str]
_DUMP_KEYS = ("input", "output", "gts", "score", "step", "uid")


def export_dump(source: PathLike, out: PathLike, tokenizer: Any) -> int:
    """Write stored rollouts as verl dumps its own, see `graph.dump_rows`; returns the number of lines.

    Args:
        source: graph file, or a folder of them.
        out: a `.jsonl` file.
        tokenizer: Hugging Face tokenizer of the run.

    Raises:
        As `export_chat`.
    """

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    def lines() -> Iterator[dict[str, Any]]:
        for graph in read_graphs(source):
            yield from dump_rows(graph, decode, Phase.from_dict(graph.phase).trains)

    return write_lines(Path(out), (".jsonl",), lines())


def import_dump(source: PathLike, tokenizer: Tokenizer) -> list[RolloutGraph]:
    """Graphs of what verl's trainer dumped: a turn for each line, tokenised anew, with the score as its reward.

    The `uid` of verl's v1 trainer names task, episode and row; the rows of an episode become its turns, the last of
    which gets the score. Lines without one are episodes of their own, and one task where step and input are the same.

    Args:
        source: a `.jsonl` file, or the folder that `trainer.rollout_data_dir` names.
        tokenizer: of the run's model.

    Returns:
        Checked graphs in the order of their steps. Numbers and texts that the reward function added are in `extra`.

    Raises:
        GraphError: names the line that cannot be read.
    """
    graphs: dict[tuple[int, str], RolloutGraph] = {}
    names: dict[tuple[int, str], str] = {}
    episodes: dict[tuple[int, str, str], list[tuple[int, Line]]] = {}
    for line in read_lines(Path(source)):
        for key in ("input", "output"):
            line.need(key, str, "a text", "verl's rollout dump")
        line.need("score", (int, float), "a number", "verl's rollout dump")
        line.need("step", int, "an integer", "verl's rollout dump")
        step = line.natural("step")
        task, episode, row = _identity(line) or (names.setdefault((step, line.data["input"]), line.name), line.name, 0)
        episodes.setdefault((step, task, episode), []).append((row, line))
    for (step, task, _), rows in episodes.items():
        _add_rows(graph_of(graphs, step, task), [line for _, line in sorted(rows, key=lambda pair: pair[0])], tokenizer)
    return checked(graphs.values())


def _identity(line: Line) -> tuple[str, str, int] | None:
    """Task, episode and row of a line of a dump, if its `uid` is one of verl's v1 trainer."""
    parts = str(line.data.get("uid")).rsplit("_", 2)
    if len(parts) == 3 and all(part.isdecimal() and len(part) < 10 for part in parts[1:]):
        return parts[0], parts[1], int(parts[2])
    return None


def _add_rows(graph: RolloutGraph, rows: Sequence[Line], tokenizer: Tokenizer) -> None:
    """One more episode of a task."""
    record = add_episode(graph)
    for line in rows:
        told, said = line.data["input"], line.data["output"]
        observation = list(tokenizer.encode(told, add_special_tokens=False))
        node = add_turn(graph, record, observation, action_tokens(line, said, tokenizer), said, [Message("user", told)])
    last, data = node, rows[-1].data
    record.ret = last.reward = float(data["score"])
    known = {*_DUMP_KEYS, *TURN_COLUMNS}
    last.extra = {k: v for k, v in data.items() if k not in known and _fits(v)}
    if data.get("gts") is not None:
        graph.task["ground_truth"] = data["gts"]


def _fits(value: Any) -> bool:
    """Whether a value of a line can be a column of a turn."""
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
