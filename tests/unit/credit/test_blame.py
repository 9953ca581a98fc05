"""Who lost an attempt: worked by hand, and what holds for every rollout."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from tests.unit.ops.test_lessons import rollout
from verl_hier.credit.blame import by_the_others, lost_attempts
from verl_hier.graph.choices import on_path, turns_of


def test_the_turn_after_which_the_others_lose_too(tmp_path):
    """ab was won; ac, bx and bx were lost. The others won 1 of 3 at the start, 1 of 1 after a, and 0 of 1 after b."""
    found = by_the_others(rollout(tmp_path))
    assert [(blame.episode, blame.place, blame.drop) for blame in found] == [
        (1, 1, 1.0),
        (2, 0, pytest.approx(1 / 3)),
        (3, 0, pytest.approx(1 / 3)),
    ]
    assert found[0].drops == pytest.approx((1 / 3 - 1, 1.0))


def test_equal_states_are_one_place_whatever_was_read(tmp_path):
    graph = rollout(tmp_path, (("xab", 1.0), ("yac", 0.0)))
    without = by_the_others(graph)
    for episode in graph.episodes:
        for number, node in enumerate(graph.path(episode.id)):
            graph.nodes[node].anchor = f"state {number}"
    assert [blame.place for blame in without] == [0]
    assert [blame.place for blame in by_the_others(graph)] == [2]


@pytest.mark.parametrize("attempts", [(("ab", 0.0),), (("a", 0.0), ("b", 0.0)), (("a", 1.0), ("b", 1.0))])
def test_nothing_is_said_where_nothing_tells(tmp_path, attempts):
    graph = rollout(tmp_path, attempts)
    assert all(blame.node == -1 and blame.place == -1 for blame in by_the_others(graph))
    for episode in graph.episodes:
        episode.success = None
    assert lost_attempts(graph) == []


def test_equal_attempts_are_lost_where_success_or_a_bound_says_so(tmp_path):
    graph = rollout(tmp_path, (("a", 0.0), ("b", 0.0)))
    assert lost_attempts(graph) == [0, 1]
    for episode in graph.episodes:
        episode.success = None
    assert (lost_attempts(graph, 0.5), lost_attempts(graph, 0.0), lost_attempts(graph)) == ([0, 1], [], [])


@pytest.mark.parametrize("seed", range(40))
def test_the_drops_of_an_attempt_sum_to_what_the_others_made_of_its_start(seed):
    graph = random_graph(seed)
    turns = turns_of(graph)
    found = by_the_others(graph)
    assert {blame.episode for blame in found} == {*lost_attempts(graph)}
    for blame in found:
        assert [turn.node for turn in on_path(graph, blame.episode, turns)] == [*blame.turns]
        assert 0.0 <= sum(blame.drops) <= 1.0 + 1e-9
        assert blame.node == -1 or blame.drops[blame.place] == max(blame.drops) == blame.drop > 0


@settings(max_examples=30, deadline=None)
@given(graph=rollout_graphs.trees())
def test_any_tree_can_be_asked(graph):
    by_the_others(graph)
