"""Rollouts as lines of text: whose turn, at which depth, with what numbers, and never more than a page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures import rollout_graphs
from verl_hier.graph import RolloutGraph
from verl_hier.graph.outline import MOST_LINES, WIDEST, examples, outline, shortened


def depth(line: str) -> int:
    return len(line) - len(line.lstrip("│├ "))


def ancestors(graph: RolloutGraph, number: int) -> Iterator[int]:
    while (number := graph.nodes[number].parent) >= 0:
        yield number


def test_a_chain_is_not_indented_and_a_fork_indents_what_is_below_it() -> None:
    graph = rollout_graphs.forked()
    lines = list(outline(graph))
    assert len(lines) == len(graph.nodes)
    order = []
    left = [node.id for node in reversed(graph.nodes) if node.parent < 0]
    while left:
        order.append(left.pop())
        left += [node.id for node in reversed(graph.nodes) if node.parent == order[-1]]
    children = {each: [node.id for node in graph.nodes if node.parent == each] for each in order}
    for line, number in zip(lines, order, strict=True):
        node = graph.nodes[number]
        siblings = children[node.parent] if node.parent >= 0 else [number]
        above = list(ancestors(graph, number))
        forks = [each for each in above if len(children[each]) > 1]
        assert depth(line) == 2 * len(forks)
        assert ("├" in line) == (len(siblings) > 1)
        assert f"{node.role}: " in line and len(line) <= WIDEST


def test_the_numbers_of_a_turn_follow_its_words() -> None:
    (graph, *_) = rollout_graphs.golden()
    lines = list(outline(graph))
    assert graph.credit and all(f"  {value:+.3f}" in line for line, value in zip(lines, graph.credit, strict=True))
    ends = {episode.leaf: episode for episode in graph.episodes}
    for node, line in zip(graph.nodes, lines, strict=True):
        assert ("  return " in line) == (node.id in ends)
        if node.id in ends:
            assert line.endswith(f"  return {ends[node.id].ret:.3g}, {ends[node.id].status}")
    graph.credit = []
    assert not any("+0." in line for line in outline(graph))
    graph.nodes[0].text = " \n"
    assert f"{len(graph.nodes[0].action)} tokens" in next(outline(graph))


@pytest.mark.parametrize("more", [-1, 0, 1, 7])
def test_what_is_left_out_is_counted(more: int) -> None:
    graph = rollout_graphs.flat(n=MOST_LINES)
    graph.nodes = [node for node in graph.nodes if node.parent < 0][: MOST_LINES + more]
    for number, node in enumerate(graph.nodes):
        node.id = number
    graph.nodes += [type(node)(**{**vars(node), "id": MOST_LINES + n}) for n, node in enumerate(graph.nodes[:more])]
    graph.credit = []
    lines = list(outline(graph))
    beyond = len(graph.nodes) - MOST_LINES
    assert len(lines) == min(len(graph.nodes), MOST_LINES) + (beyond > 0)
    assert (lines[-1] == f"… {beyond} further turns") == (beyond > 0)


def test_a_text_is_shortened_only_where_it_is_too_long() -> None:
    assert shortened("abc", 3) == "abc" and shortened("abcd", 3) == "ab…"


def test_three_groups_are_worth_a_look_and_none_twice() -> None:
    groups = [{"mean": mean, "spread": spread} for mean, spread in ((0.5, 0.1), (0.9, 0.0), (0.1, 0.5), (0.0, 0.2))]
    groups.append({"mean": None, "spread": 9.0})
    found = [group for _, group in examples(groups)]
    assert found == [groups[2], groups[1], groups[3]]
    assert [group for _, group in examples(groups[:1])] == groups[:1] and not list(examples(groups[-1:]))
