"""Rollouts as chat messages: every context of a complete episode is a line, and says what its turns said and earned."""

import pytest
from hypothesis import given, settings

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import Message, chat_rows, conversation
from verl_hier.graph.rows import chains


@settings(max_examples=60, deadline=None)
@given(rollout_graphs.trees())
def test_every_context_of_the_complete_episodes_is_a_line(graph):
    graph.step, graph.task["data_source"] = 7, "corridor"
    graph.credit = [0.5 * node.id for node in graph.nodes]
    for record in graph.episodes:
        record.success = (None, True, False)[record.id % 3]
    owners = {}
    for episode in graph.complete():
        for chain in chains(graph, episode.id):
            owners.setdefault(tuple(chain), []).append(episode)
    lines = list(chat_rows(graph))
    assert [tuple(line["nodes"]) for line in lines] == list(owners)
    for line, (chain, episodes) in zip(lines, owners.items(), strict=True):
        said = []
        nodes = [graph.nodes[number] for number in chain]
        for node in nodes:
            said += [{"role": m.role, "content": m.content} for m in node.messages]
            said.append({"role": "assistant", "content": node.text})
        assert line["messages"] == said
        assert line["episodes"] == [episode.id for episode in episodes]
        assert line["return"] == pytest.approx(sum(episode.ret for episode in episodes) / len(episodes))
        won = [episode.success for episode in episodes if episode.success is not None]
        assert line["success"] == (pytest.approx(sum(won) / len(won)) if won else None)
        assert line["rewards"] == [node.reward for node in nodes]
        assert line["credit"] == [graph.credit[number] for number in chain]
        assert [line[name] for name in ("agent", "role", "level")] == [
            getattr(nodes[-1], name) for name in ("agent", "role", "level")
        ]
        assert [line[name] for name in ("uid", "index", "data_source", "step")] == ["u", 0, "corridor", 7]


def test_pieces_and_what_stands_between_them_are_one_message():
    graph = rollout_graphs.flat()
    graph.nodes[1].messages = [Message("continued", " <saw> sky </saw> ")]
    graph.nodes[0].text = "look"
    assert conversation(graph, 1)[1:] == [{"role": "assistant", "content": "look <saw> sky </saw> right"}]
    whole = conversation(graph, 2)
    graph.split(graph.nodes[0], 1)
    graph.nodes[0].text, graph.nodes[1].text = "lo", "ok"
    assert conversation(graph, 3) == whole


def test_a_turn_in_pieces_has_one_reward_and_the_mean_credit_of_its_tokens():
    graph = rollout_graphs.flat(n=1)
    tokens = len(graph.nodes[0].action)
    graph.nodes[0].reward = 2.0
    graph.split(graph.nodes[0], tokens - 1)
    graph.credit = [1.0, 4.0, *[0.0] * (len(graph.nodes) - 2)]
    (line,) = chat_rows(graph)
    assert line["nodes"] == [node.id for node in graph.nodes[1:]] and line["rewards"][0] == 2.0
    assert line["credit"][0] == pytest.approx(((tokens - 1) * 1.0 + 4.0) / tokens)
    graph.credit = []
    assert next(chat_rows(graph))["credit"] is None


def test_an_episode_that_ended_inside_a_turn_shows_it():
    graph = rollout_graphs.flat(n=1)
    graph.nodes[-1].partial = True
    (line,) = chat_rows(graph)
    assert line["nodes"] == [node.id for node in graph.nodes] and len(graph.nodes) > 2


def test_a_continued_message_that_nothing_comes_before_is_a_message_of_its_own():
    graph = rollout_graphs.flat(n=1)
    graph.nodes[0].messages = [Message("continued", "go")]
    assert conversation(graph, 0)[0] == {"role": "continued", "content": "go"}


def test_a_graph_without_messages_has_no_lines():
    graph = rollout_graphs.flat(n=1)
    for node in graph.nodes:
        node.messages = []
    with pytest.raises(GraphError, match="keeps no messages"):
        list(chat_rows(graph))


def test_credit_and_shared_contexts():
    graph = rollout_graphs.hierarchical()
    graph.credit = [float(node.id) for node in graph.nodes]
    lines = list(chat_rows(graph))
    assert all(line["credit"] == [float(number) for number in line["nodes"]] for line in lines)
    plans = [line for line in lines if line["role"] == "planner"]
    assert len(plans) == len({line["nodes"][0] for line in plans})
    assert max(len(line["episodes"]) for line in plans) > 1
    assert {line["level"] for line in lines} == {0, 1}
