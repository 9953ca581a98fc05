"""A group as the page draws it: its attempts, its turns, and the words and numbers of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_hier.graph import EpisodeRecord, Node, RolloutGraph
from verl_hier.viewer.overview import title_of

View = dict[str, Any]
LONGEST_WORDS = 20_000
"""Characters of one text that a page gets; it says how many there are."""
MOST_TOKENS = 4_000
"""Tokens of one turn whose numbers a page gets."""
_NUMBERS = (
    *("id", "parent", "context", "episode", "agent", "role", "level", "turn", "segment", "plan", "partial", "trained"),
    *("reward", "done", "truncated", "valid", "anchor", "stop_reason", "prompt_tokens", "cached_tokens", "decision"),
    *("extra", "policy", "policy_version", "masks"),
)
_EPISODE = (
    *("id", "source", "shared", "tree", "leaf", "status", "ret", "success", "trained", "greedy", "error", "decision"),
    "reward_info",
)


def group_view(graph: RolloutGraph, step: int) -> View:
    """Everything that is stored of a group, as values of JSON.

    Args:
        graph: with its credit.
        step: trainer step that trained it.

    Returns:
        the fields of the graph by their names; texts longer than `LONGEST_WORDS` are cut, and `characters` of a turn or
        message says how long it was. `credit` of a turn is None where none was stored.
    """
    credit: Sequence[float | None] = graph.credit or [None] * len(graph.nodes)
    return {
        "step": step,
        "uid": str(graph.task.get("uid", "")),
        "title": title_of(graph.task),
        "task": {name: _cut(value) if isinstance(value, str) else value for name, value in graph.task.items()},
        **{name: getattr(graph, name) for name in ("phase", "request", "counts", "seconds", "budget", "seed", "short")},
        "episodes": [_episode(episode) for episode in graph.episodes],
        "turns": [_turn(node, value) for node, value in zip(graph.nodes, credit, strict=True)],
    }


def _episode(episode: EpisodeRecord) -> View:
    return {name: getattr(episode, name) for name in _EPISODE} | {"withheld": episode.withheld}


def _turn(node: Node, credit: float | None) -> View:
    entropies = node.entropy or [-value for value in node.logprobs]
    return {name: getattr(node, name) for name in _NUMBERS} | {
        "credit": credit,
        "text": _cut(node.text),
        "characters": len(node.text),
        "messages": [
            {
                "role": message.role,
                "content": _cut(message.content),
                "characters": len(message.content),
                "sources": message.sources,
            }
            for message in node.messages
        ],
        "n_observation": len(node.observation),
        "n_action": len(node.action),
        "tokens": node.action[:MOST_TOKENS],
        "logprobs": _rounded(node.logprobs),
        "entropy": _rounded(node.entropy),
        "mean_entropy": float(np.mean(entropies)) if entropies else None,
        "top": [[[token, round(value, 3)] for token, value in entries] for entries in node.top[:MOST_TOKENS]],
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values[:MOST_TOKENS]]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WORDS else text[:LONGEST_WORDS]
