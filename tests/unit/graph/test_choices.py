"""Places and choices: what several episodes said after reading the same, against a slow and obvious search."""

from __future__ import annotations

import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from verl_hier.graph.choices import CUT_OFF, FROZEN, INSERTED, REFUSED, SILENT, choices_of, on_path, turns_of


def whole_turns(graph):
    """(episode, pieces) of every turn of the complete episodes."""
    for episode in graph.complete():
        pieces = []
        for node in (graph.nodes[number] for number in graph.path(episode.id)):
            pieces.append(node)
            if not node.partial:
                yield episode, pieces
                pieces = []
        if pieces:
            yield episode, pieces


@pytest.mark.parametrize("seed", range(60))
def test_places_are_equal_where_equal_tokens_were_read(seed):
    graph = random_graph(seed)
    turns, choices = turns_of(graph), choices_of(graph)
    slow = {}
    for episode, pieces in whole_turns(graph):
        first = pieces[0]
        key = (tuple(graph.prompt(first.id)), first.role, first.policy, "".join(piece.text for piece in pieces))
        slow.setdefault(key[:-1], {}).setdefault(key[-1], {})[episode.id] = episode.ret
        assert turns[pieces[-1].id].text == key[-1]
    fast = [{text: choice.returns for text, choice in at.items()} for at in choices.values()]
    assert sorted(map(repr, map(normal, fast))) == sorted(map(repr, map(normal, slow.values())))
    for episode in graph.complete():
        pieces = [pieces[-1].id for each, pieces in whole_turns(graph) if each is episode]
        assert [turn.node for turn in on_path(graph, episode.id, turns)] == pieces


def normal(choices):
    return sorted((text, sorted(returns.items())) for text, returns in choices.items())


def test_the_value_of_a_choice_is_the_mean_return_of_the_attempts_that_made_it():
    graph = rollout_graphs.flat(n=6, seed=1)
    first = next(iter(choices_of(graph).values()))
    for text, choice in first.items():
        made = [e.ret for e in graph.complete() if graph.nodes[graph.path(e.id)[0]].text == text]
        assert choice.value == pytest.approx(sum(made) / len(made)) and len(choice.returns) == len(made)


def test_each_flaw_of_a_turn_has_its_name():
    def flaw(change):
        graph = rollout_graphs.flat(n=1, seed=0)
        node = graph.nodes[graph.path(0)[0]]
        node.valid = True
        change(node)
        return turns_of(graph)[node.id].flaw

    assert flaw(lambda node: None) is None
    assert flaw(lambda node: setattr(node, "stop_reason", "length")) == CUT_OFF
    assert flaw(lambda node: setattr(node, "trained", False)) == FROZEN
    assert flaw(lambda node: setattr(node, "valid", False)) == REFUSED
    assert flaw(lambda node: setattr(node, "text", " \n")) == SILENT
    assert flaw(lambda node: setattr(node.messages[0], "role", "continued")) == INSERTED
