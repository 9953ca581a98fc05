"""Rollout graphs in the format of verl's own rollout dump (`trainer.rollout_data_dir`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from verl_hier.graph.nodes import Node, RolloutGraph
from verl_hier.graph.rows import graph_rows


def dump_rows(
    graph: RolloutGraph, decode: Callable[[list[int]], str], trained: Callable[[Node], bool] = lambda node: True
) -> Iterator[dict[str, Any]]:
    """One line for each row that verl trains, as `PPOTrainer._log_rollout_data` of verl's v1 trainer writes it.

    Args:
        graph: a graph whose `check` passes.
        decode: text of token ids without special tokens.
        trained: whether the schedule trained a turn; rows that train nothing never reach verl.

    Yields:
        `input` and `output`: prompt and response; `gts`: the task's `ground_truth`, if it has one; `score`: return of
        the episode, the same for all of its rows; `step`; `uid`: task, episode and place of the row in the episode.
    """
    places: Counter[int] = Counter()
    for row in graph_rows(graph, trained):
        yield {
            "input": decode(row.prompt),
            "output": decode(row.response),
            "gts": graph.task.get("ground_truth"),
            "score": graph.episodes[row.episode].ret,
            "step": graph.step,
            "uid": f"{graph.task.get('uid', '')}_{row.episode}_{places[row.episode]}",
        }
        places[row.episode] += 1
