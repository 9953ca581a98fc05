"""verl's reward function is asked about each episode by its last row."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tests.fixtures.agent_loop_worker import idle_worker
from tests.fixtures.executed_lines import executed_lines
from tests.fixtures.random_graphs import many_turns
from verl_hier.graph import graph_rows

pytest.importorskip("verl_hier.compat.agent_loop")
ALL = SimpleNamespace(trains=lambda node: True)


def score(graph):
    """Let every episode be scored with 2; returns the outputs that were scored."""
    worker = idle_worker()
    scored = []

    async def compute(outputs, kwargs):
        scored.extend(outputs)
        outputs[0].reward_score = 2.0

    worker._compute_score = compute
    asyncio.run(worker._score(graph, ALL, {}))
    return scored


def fresh_contexts(episodes):
    """Episodes of four turns, each of which starts a context and so makes a row of its own."""
    graph = many_turns(episodes, 4)
    graph.task["index"] = 0
    for node in graph.nodes:
        node.context, node.prompt_tokens = -1, 0
    return graph


def test_the_last_row_of_each_episode_is_scored():
    graph = fresh_contexts(4)
    last = {row.episode: row.response for row in graph_rows(graph, lambda node: True)}
    assert [output.response_ids for output in score(graph)] == list(last.values())
    assert {graph.nodes[episode.leaf].reward for episode in graph.episodes} == {2.0}
    assert [episode.ret for episode in graph.episodes] == [2.0] * 4


def test_scoring_costs_as_much_for_each_episode_of_more():
    little, much = (executed_lines(score, fresh_contexts(episodes)) for episodes in (8, 32))
    assert much <= 4.1 * little
