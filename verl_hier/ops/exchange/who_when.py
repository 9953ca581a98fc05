"""Lost attempts in the form of Who&When, a benchmark of who lost an attempt of several agents, and when.

The form (https://arxiv.org/abs/2505.00212): a JSON object with `question`, `ground_truth`, `is_correct`, the `history`
as a list of `content`, `name` and `role`, and, as its label, `mistake_agent` and `mistake_step`, the place in the
history from 0. Read by `Automated_FA/Lib/utils.py:45-56` of n4feng/Agents_Failure_Attribution at aeffbf5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_hier.graph import RolloutGraph
from verl_hier.graph.choices import on_path, turns_of

WORLD = "world"
"""The name of what the agents are told by nobody else."""
Fields = dict[str, Any]


def history(graph: RolloutGraph, episode: int) -> tuple[list[Fields], dict[int, int]]:
    """What was said in an attempt, and for the last node of each turn its place there.

    What an agent reads is said by the world, except for words of other agents, which stand there already.
    """
    entries: list[Fields] = []
    places: dict[int, int] = {}
    for turn in on_path(graph, episode, turns_of(graph)):
        node = graph.nodes[turn.node]
        for message in (message for piece in graph.pieces(node) for message in piece.messages):
            if not message.sources and message.role not in ("assistant", "continued"):
                entries.append({"content": message.content, "name": WORLD, "role": "user"})
        places[turn.node] = len(entries)
        entries.append({"content": turn.text, "name": node.agent, "role": "assistant"})
    return entries, places


def case(graph: RolloutGraph, episode: int, node: int, reason: str, more: Fields | None = None) -> Fields:
    """A lost attempt with its label.

    Args:
        graph: that holds it.
        episode: the attempt.
        node: the last node of the turn that lost it; -1 where nobody knows.
        reason: why it is that one, in words.
        more: further fields.
    """
    entries, places = history(graph, episode)
    task = graph.task
    return {
        "is_correct": False,
        "question": str(task.get("instruction") or (entries[0]["content"] if entries else "")),
        "question_ID": f"{graph.step}/{task.get('uid', '')}/{episode}",
        "ground_truth": task.get("ground_truth"),
        "history": entries,
        "mistake_agent": graph.nodes[node].agent if node >= 0 else None,
        "mistake_step": places[node] if node >= 0 else None,
        "mistake_reason": reason,
        **(more or {}),
    }


def accuracy(found: Sequence[tuple[Fields, str | None, int | None]]) -> dict[str, float]:
    """How often the agent and the step of cases were found; where nothing was named, neither was.

    Args:
        found: each case with the agent and the step that were named.
    """
    count = max(len(found), 1)
    agents = sum(agent is not None and agent == each["mistake_agent"] for each, agent, _ in found)
    steps = sum(step is not None and step == each["mistake_step"] for each, _, step in found)
    return {"agent": agents / count, "step": steps / count, "named": sum(s is not None for *_, s in found) / count}
