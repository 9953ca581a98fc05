"""What the views of a rollout graph cost grows with its turns, its episodes and the tasks of a step, and no faster."""

import asyncio

import pytest

from tests.fixtures.executed_lines import executed_lines
from tests.fixtures.random_graphs import many_turns, random_graph
from verl_hier.graph import RolloutGraph, build_table, graph_rows
from verl_hier.graph.columnar.light import light_of
from verl_hier.rollout.rewards import Reward, rate
from verl_hier.training.metrics import rollout_metrics, tree_metrics, turn_metrics


def rows(graphs):
    return [graph_rows(graph, lambda node: True) for graph in graphs]


def check(graphs):
    for graph in graphs:
        graph.check()


def metrics(graphs):
    light = light_of(graphs)
    return rollout_metrics(light), turn_metrics(light)


VIEWS = {view.__name__: view for view in (check, rows, build_table, metrics)}
GROWING = {
    "turns of an episode": lambda size: [many_turns(2, 10 * size)],
    "episodes of a task": lambda size: [many_turns(2 * size, 10)],
    "tasks of a step": lambda size: [many_turns(2, 10, str(number)) for number in range(size)],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("growing", GROWING)
def test_a_view_costs_as_much_for_each_turn_of_more(view, growing):
    little, much = (executed_lines(VIEWS[view], GROWING[growing](size)) for size in (4, 16))
    assert 0 < much <= 4 * little


class Counted(int):
    """A node number that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other):
        Counted.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def comparisons(episodes):
    graph = many_turns(episodes, 8)
    for node in graph.nodes:
        node.parent = Counted(node.parent)
    Counted.comparisons = 0
    reward = Reward(lambda episode: 1.0, roles=("a",))
    asyncio.run(rate(graph, {}, {"one": reward}))
    return Counted.comparisons


def test_rewards_are_given_without_comparing_each_turn_with_all_others():
    assert comparisons(32) <= 5 * comparisons(8)


def slow_tree_metrics(graphs):
    """The same by one leaf of one task at a time."""
    paths = {(graph.task["uid"], e.id): graph.path(e.id) for graph in graphs for e in graph.complete() if e.trained}
    if not paths:
        return {}
    size = {
        (graph.task["uid"], node.id): len(node.observation) + len(node.action)
        for graph in graphs
        for node in graph.nodes
    }
    every = [(uid, node) for (uid, _), path in paths.items() for node in path]
    total, unique = sum(size[key] for key in every), sum(size[key] for key in set(every))
    calls = sum(graph.counts.get("environment_calls", 0) for graph in graphs)
    return {
        "hier/tree/leaves_mean": len(paths) / len(graphs),
        "hier/tree/token_ratio": total / max(unique, 1),
        "hier/tree/calls_per_leaf": calls / len(paths),
    }


def test_tree_metrics_are_those_of_one_leaf_at_a_time():
    for seed in range(60):
        graphs: list[RolloutGraph] = [random_graph(3 * seed + number, str(number)) for number in range(3)]
        found, expected = tree_metrics(light_of(graphs)), slow_tree_metrics(graphs)
        assert {name: found.get(name) for name in expected} == expected
        assert bool(found) == bool(expected)


def test_an_episode_has_as_many_turns_as_its_path_has_without_pieces():
    for seed in range(100):
        graph = random_graph(seed)
        for episode in graph.episodes:
            path = graph.path(episode.id)
            assert graph.turns(episode.id) == sum(not graph.nodes[number].partial for number in path)
