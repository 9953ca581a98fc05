"""Graphs of states over many rollouts, against the groups that estimators by anchors form and against slow counting."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from verl_hier.graph import build_table
from verl_hier.graph.choices import good_attempts, on_path, turns_of
from verl_hier.graph.states import state_graphs


def test_the_turns_of_a_state_are_those_that_estimators_compare():
    graph = rollout_graphs.flat(n=6, seed=2)
    (found,) = state_graphs([graph])
    table = build_table([graph])
    anchors = np.asarray(table["anchor"])
    compared = {table.anchors[number]: int(many) for number, many in enumerate(np.bincount(anchors))}
    assert {name: tally.turns for name, tally in found.states.items()} == compared
    assert not found.unnamed and found.attempts == 6


@pytest.mark.parametrize("seed", range(40))
def test_each_turn_is_in_one_state_and_one_edge_or_counted(seed):
    graphs = [random_graph(seed, "a"), random_graph(seed + 500, "b")]
    for graph in graphs:
        graph.task, graph.step = {"uid": graph.task["uid"], "index": 3, "data_source": "x"}, seed + len(graph.nodes)
    (found,) = state_graphs(graphs)
    named, unnamed, attempts, total, good, edges = (
        Counter(),
        Counter(),
        defaultdict(set),
        Counter(),
        Counter(),
        Counter(),
    )
    for which, graph in enumerate(graphs):
        turns, well = turns_of(graph), good_attempts(graph)
        seen = set()
        for episode in graph.complete():
            path = [
                (turn, graph.pieces(graph.nodes[turn.node])[0].anchor) for turn in on_path(graph, episode.id, turns)
            ]
            for turn, name in path:
                if turn.node not in seen:
                    (unnamed if name is None else named)[graph.nodes[turn.node].role if name is None else name] += 1
                seen.add(turn.node)
            for name in {name for _, name in path if name is not None}:
                attempts[name].add((which, episode.id))
                total[name] += episode.ret
                good[name] += episode.id in well
            steps = [name for _, name in path if name is not None]
            edges.update(zip(steps, [*steps[1:], None]))
    assert found.unnamed == unnamed and {name: tally.turns for name, tally in found.states.items()} == named
    for name, tally in found.states.items():
        assert (tally.attempts, tally.good) == (len(attempts[name]), good[name])
        assert tally.total == pytest.approx(total[name])
    fields = found.fields()
    assert {(edge["from"], edge["to"]) for edge in fields["edges"]} == {
        (
            fields["states"].index(next(s for s in fields["states"] if s["state"] == a)),
            None if b is None else [s["state"] for s in fields["states"]].index(b),
        )
        for a, b in edges
    }
    assert sum(edge["turns"] for edge in fields["edges"]) >= sum(named.values())


def test_rollouts_of_other_tasks_and_of_validations_stay_apart():
    graphs = [rollout_graphs.flat(n=2, seed=seed) for seed in range(4)]
    for graph, (index, validate) in zip(graphs, ((0, False), (0, False), (1, False), (0, True)), strict=True):
        graph.task["index"], graph.request["validate"] = index, validate
    found = [each.fields() for each in state_graphs(graphs)]
    assert [(each["index"], each["validation"], each["attempts"]) for each in found] == [
        (0, False, 4),
        (1, False, 2),
        (0, True, 2),
    ]
