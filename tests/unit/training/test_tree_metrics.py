"""Metrics of trees, against a tree small enough to count by hand."""

import copy

import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph
from verl_hier.graph.columnar.light import light_of
from verl_hier.training.metrics import counted, tree_metrics, turn_metrics


def node(number, parent, observation, action, **more):
    prompt = more.pop("prompt", 0)
    turn = 0 if parent < 0 else 1
    said = {"agent": "a", "role": "a", "level": 0, "segment": 0, "plan": -1, "logprobs": []}
    return Node(
        id=number, parent=parent, context=parent, episode=number, turn=turn, **said,
        observation=[0] * observation, action=[0] * action, prompt_tokens=prompt, **more,
    )  # fmt: skip


def fork(number, **more):
    return EpisodeRecord(number, source=0, shared=1, leaf=number, status="finished", **more)


@pytest.fixture
def tree():
    """Ten tokens, then three leaves of five tokens; the last is not trained."""
    trunk = node(0, -1, 6, 4, prompt=6)
    trunk.episode = 0
    leaves = [node(i, 0, 2, 3, prompt=12, cached_tokens=9 if i > 1 else 6) for i in (1, 2, 3)]
    leaves[0].episode = 0
    episodes = [EpisodeRecord(0, leaf=1, status="finished"), fork(1), fork(2, trained=False)]
    episodes[1].leaf, episodes[2].leaf = 2, 3
    graph = RolloutGraph({"uid": "u"}, [trunk, *leaves], episodes)
    graph.counts = {"environment_calls": 5}
    graph.budget = {"turns": [4.0, 8.0]}
    return graph


def test_by_hand(tree):
    assert tree_metrics(light_of([tree])) == {
        "hier/tree/leaves_mean": 2.0,
        "hier/tree/token_ratio": 30 / 20,
        "hier/tree/fork_rate": 2 / 4,
        "hier/tree/calls_per_leaf": 2.5,
        "hier/tree/branch_position": 0.5,
        "hier/tree/branch_prefix_hit": 18 / 24,
        "hier/budget/turns": 0.5,
    }


def test_what_is_per_task_is_halved_by_a_task_of_nothing_and_kept_by_a_second_tree(tree):
    alone = tree_metrics(light_of([tree]))
    beside_nothing = tree_metrics(light_of([tree, RolloutGraph({"uid": "nothing"})]))
    per_task = ("hier/tree/leaves_mean", "hier/budget/turns")
    assert beside_nothing == {name: value / 2 if name in per_task else value for name, value in alone.items()}
    second = copy.deepcopy(tree)
    second.task["uid"] = "v"
    assert tree_metrics(light_of([tree, second])) == alone


def test_a_fork_without_a_turn_is_none_and_one_that_shares_all_turns_is_one(tree):
    before = tree_metrics(light_of([tree]))
    tree.episodes.append(EpisodeRecord(3, source=0, shared=0, leaf=-1, status="failed"))
    assert tree_metrics(light_of([tree])) == before
    whole = RolloutGraph({"uid": "u"}, [node(0, -1, 2, 3)], [EpisodeRecord(0, leaf=0, status="finished")])
    whole.episodes.append(fork(1))
    whole.episodes[1].leaf = 0
    found = tree_metrics(light_of([whole]))
    assert (found["hier/tree/fork_rate"], found["hier/tree/branch_position"]) == (1.0, 1.0)
    assert (found["hier/tree/leaves_mean"], found["hier/tree/token_ratio"]) == (2.0, 2.0)
    assert "hier/tree/branch_prefix_hit" not in found


def test_chains_share_nothing():
    found = tree_metrics(light_of([rollout_graphs.flat(), rollout_graphs.flat()]))
    assert found["hier/tree/token_ratio"] == 1.0 and found["hier/tree/fork_rate"] == 0.0
    assert "hier/tree/branch_position" not in found
    assert tree_metrics(light_of([RolloutGraph({"uid": "u"})])) == {}


def test_turns_are_those_of_whole_episodes(tree):
    assert turn_metrics(light_of([])) == {}
    lengths = [len(tree.path(episode.id)) for episode in tree.complete()]
    found = turn_metrics(light_of([tree]))
    assert found["num_turns/mean"] == found["training/num_turns/mean"] == sum(lengths) / len(lengths)
    assert (found["num_turns/min"], found["num_turns/max"]) == (min(lengths), max(lengths))
    first = tree.nodes[tree.path(0)[-1]]
    tree.split(first, 1)
    assert turn_metrics(light_of([tree])) == found, "a turn in two pieces is one turn"


def test_counts_of_several_updates_are_summed_and_shares_are_not():
    updates = [
        {"hier/episodes/count": 4.0, "hier/failures/cut": 1.0, "hier/episodes/return_mean": 0.5},
        {"hier/episodes/count": 2.0, "hier/rows/trained": 3.0, "actor/lr": 1.0},
    ]
    assert counted(updates) == {"hier/episodes/count": 6, "hier/failures/cut": 1, "hier/rows/trained": 3}
    assert counted([]) == {}


def test_turns_of_several_updates_are_those_of_all_their_episodes():
    graphs = [random_graph(number, f"task {number}") for number in range(4)]
    assert turn_metrics(light_of(graphs[:1]), light_of(graphs[1:])) == turn_metrics(light_of(graphs))
