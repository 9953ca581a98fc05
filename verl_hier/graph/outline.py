"""Rollouts as lines of text, for reports and for the trackers of a run; and which of many are worth a look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from verl_hier.graph.nodes import Node, RolloutGraph
from verl_hier.text import visible

MOST_LINES = 40
WIDEST = 100
"""Characters of the line of a turn, where its role and its numbers leave room."""


def outline(graph: RolloutGraph) -> Iterator[str]:
    """A line a turn, indented where the tree branches; the return of an episode follows its last turn.

    Signs that are not seen are shown by their codes. After `MOST_LINES` turns a line says how many are left out.
    """
    below: dict[int, list[Node]] = {}
    for node in graph.nodes:
        below.setdefault(node.parent, []).append(node)
    ends = {episode.leaf: episode for episode in graph.episodes}
    credit: Sequence[float | None] = graph.credit or [None] * len(graph.nodes)
    # A stack, because trees may be deeper than Python's calls.
    stack = [(node, 0, False) for node in reversed(below.get(-1, []))]
    shown = 0
    while stack and shown < MOST_LINES:
        node, depth, branches = stack.pop()
        value = credit[node.id]
        words = in_a_line(node.text[: 10 * WIDEST]) or f"{len(node.action)} tokens"
        start = f"{'│ ' * (depth - branches)}{'├ ' * branches}{in_a_line(node.role)}: "
        end = "" if value is None else f"  {value:+.3f}"
        episode = ends.get(node.id)
        end += "" if episode is None else f"  return {episode.ret:.3g}, {episode.status}"
        yield f"{start}{shortened(words, max(10, WIDEST - len(start) - len(end)))}{end}"
        shown += 1
        children = below.get(node.id, [])
        forks = len(children) > 1
        stack += [(child, depth + forks, forks) for child in reversed(children)]
    if stack:
        yield f"… {len(graph.nodes) - shown} further turns"


def examples(groups: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Up to three groups that are worth a look, and why: whose returns differ most, the best and the worst of others.

    Args:
        groups: with the `mean` and the `spread` of the returns of their episodes; a mean of None leaves a group out.
    """
    left = [group for group in groups if group["mean"] is not None]
    for says, worth in (
        ("The group whose returns differ most", lambda group: group["spread"]),
        ("The best group", lambda group: group["mean"]),
        ("The worst group", lambda group: -group["mean"]),
    ):
        if left:
            chosen = max(left, key=worth)
            left.remove(chosen)
            yield says, chosen


def in_a_line(text: str) -> str:
    """The words of a text in one line, whose signs are all seen."""
    return visible(" ".join(text.split()))


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
