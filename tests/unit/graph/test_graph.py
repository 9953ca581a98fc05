"""Graph, rows and turn table over random trees: what has to hold however episodes fork and contexts continue."""

import copy
import dataclasses
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from verl_hier.errors import CreditError, GraphError
from verl_hier.graph import (
    TURN_COLUMNS,
    EpisodeRecord,
    Message,
    Node,
    RolloutGraph,
    build_table,
    dump_rows,
    graph_rows,
    invariants,
    number_turns,
)
from verl_hier.graph.columnar.light import light_of
from verl_hier.graph.nodes import cut_spans
from verl_hier.graph.rows import chains, leaf_row
from verl_hier.graph.turn_table import EPISODE_COLUMNS

quick = settings(max_examples=60, deadline=None)
few = settings(max_examples=20, deadline=None)
RULES = st.sampled_from(["once", "first_owner", "repeat", "average"])


def everything(node):
    return True


def executors(node):
    return node.role == "executor"


def through(graph, node, trained=None):
    """Complete episodes whose path runs through a node."""
    return [
        episode for episode in graph.complete() if node in graph.path(episode.id) and trained in (None, episode.trained)
    ]


@quick
@given(rollout_graphs.trees())
def test_chains_cover_every_turn_and_follow_contexts(graph):
    for episode in graph.episodes:
        path = graph.path(episode.id)
        found = chains(graph, episode.id)
        assert sorted({node for chain in found for node in chain}) == path
        links = set()
        for chain in found:
            assert [graph.nodes[node].context for node in chain] == [-1, *chain[:-1]]
            links |= set(itertools.pairwise(chain))
        contexts = {(graph.nodes[node].context, node) for node in path if graph.nodes[node].context >= 0}
        assert links == contexts
        assert len({tuple(chain) for chain in found}) == len(found)


@quick
@given(rollout_graphs.trees(), RULES)
def test_rows_are_what_the_server_saw(graph, rule):
    for row in graph_rows(graph, everything, rule):
        last = graph.nodes[row.nodes[-1]]
        assert row.prompt + row.response == graph.prompt(last.id) + last.action
        assert len(row.mask) == len(row.logprobs) == len(row.turn_index) == len(row.response)
        for node in row.nodes:
            own = [place for place, turn in enumerate(row.turn_index) if turn == node]
            assert [row.response[place] for place in own] == graph.nodes[node].action
            assert [row.logprobs[place] for place in own] == (graph.nodes[node].logprobs or [0.0] * len(own))
            assert len({row.mask[place] for place in own}) == 1
        seen = [place for place, turn in enumerate(row.turn_index) if turn not in row.nodes]
        assert all((row.turn_index[place], row.mask[place], row.logprobs[place]) == (-1, 0, 0.0) for place in seen)
        assert any(row.mask)
        assert row.episode in {episode.id for episode in graph.complete()}


@few
@given(rollout_graphs.trees())
def test_the_row_of_a_leaf_ends_with_it(graph):
    for episode in graph.complete():
        row, leaf = leaf_row(graph, episode.id), graph.nodes[episode.leaf]
        assert row.episode == episode.id and row.nodes == graph.chain(leaf.id)
        assert row.prompt + row.response == graph.prompt(leaf.id) + leaf.action
        assert row.mask == [int(turn >= 0) for turn in row.turn_index]


@few
@given(rollout_graphs.trees(), st.sampled_from([everything, executors]))
def test_dumped_rows_are_numbered_in_their_episode(graph, trained):
    graph.step, graph.task["ground_truth"] = 7, "4"
    rows, lines = graph_rows(graph, trained), list(dump_rows(graph, lambda tokens: str(tokens), trained))
    assert [(line["input"], line["output"]) for line in lines] == [(str(row.prompt), str(row.response)) for row in rows]
    numbers = [sum(other.episode == row.episode for other in rows[:place]) for place, row in enumerate(rows)]
    names = [f"u_{row.episode}_{number}" for row, number in zip(rows, numbers, strict=True)]
    assert [line["uid"] for line in lines] == names
    assert all((line["gts"], line["step"]) == ("4", 7) for line in lines)
    assert [line["score"] for line in lines] == [graph.episodes[row.episode].ret for row in rows]


@quick
@given(rollout_graphs.trees(), RULES, st.sampled_from([everything, executors]))
def test_how_often_a_turn_is_trained(graph, rule, trained):
    """Once; with `repeat` and `average` once in each trained episode through it."""
    said = {node.id: 0 for node in graph.nodes}
    rows = graph_rows(graph, trained, rule)
    for row in rows:
        for node in {t for t, mask in zip(row.turn_index, row.mask, strict=True) if mask}:
            said[node] += 1
    for node in graph.nodes:
        owners = through(graph, node.id)
        expected = int(bool(owners) and node.trained and trained(node))
        if expected and rule in ("repeat", "average"):
            expected = max(1, len(through(graph, node.id, trained=True)))
        assert said[node.id] == expected
    assert [row.episode for row in rows] == sorted(row.episode for row in rows)


@quick
@given(rollout_graphs.trees(), RULES)
def test_a_shared_turn_is_trained_by_a_trained_episode_first(graph, rule):
    for row in graph_rows(graph, everything, rule):
        if not graph.episodes[row.episode].trained:
            mine = {t for t, mask in zip(row.turn_index, row.mask, strict=True) if mask}
            assert not any(through(graph, node, trained=True) for node in mine)


@quick
@given(st.lists(rollout_graphs.trees(), min_size=1, max_size=3))
def test_table_columns_agree_with_the_graphs(graphs):
    table, turns = number_turns(graphs, [lambda role, level: role == "executor"] * len(graphs))
    assert [len(turn_of) for turn_of in turns] == [len(graph.nodes) for graph in graphs]
    if not len(table):
        assert not any(list(graph.complete()) for graph in graphs)
        return
    assert set(TURN_COLUMNS) <= set(table.turns) and set(EPISODE_COLUMNS) <= set(table.episodes)
    first = 0
    for number, graph in enumerate(graphs):
        turn_of = {node: turn for node, turn in enumerate(turns[number].tolist()) if turn >= 0}
        complete = list(graph.complete())
        assert set(turn_of) == {node for episode in complete for node in graph.path(episode.id)}
        for node_id, turn in turn_of.items():
            node, owners = graph.nodes[node_id], through(graph, node_id)
            assert table["group"][turn] == number
            assert table["episode"][turn] == first + complete.index(owners[0])
            assert table["parent"][turn] == turn_of.get(node.parent, -1)
            assert table["plan"][turn] == turn_of.get(node.plan, -1)
            assert table["turn"][turn] == table["depth"][turn] == node.turn
            assert table["leaves"][turn] == len(owners)
            assert table["return"][turn] == pytest.approx(np.mean([episode.ret for episode in owners]))
            assert table["reward"][turn] == node.reward
            assert table["n_tokens"][turn] == len(node.action)
            assert table["trained"][turn] == (node.trained and node.role == "executor")
            assert table.names["role"][table["role"][turn]] == node.role
            if node.logprobs:
                assert table["entropy"][turn] == pytest.approx(-np.mean(node.logprobs))
            else:
                assert np.isnan(table["entropy"][turn])
        for place, episode in enumerate(complete):
            row = first + place
            assert table["episodes.return"][row] == episode.ret
            assert table["episodes.leaf"][row] == turn_of[episode.leaf]
            assert table["episodes.turns"][row] == len(graph.path(episode.id))
            assert table["episodes.trained"][row] == episode.trained
            steps = table.step_turn[table.step_episode == row]
            assert steps.tolist() == [turn_of[node] for node in graph.path(episode.id)]
        first += len(complete)
    assert (np.diff(table.step_episode) >= 0).all()
    assert np.bincount(table.step_turn, minlength=len(table)).tolist() == table["leaves"].tolist()
    assert np.bincount(table["tokens.turn"], minlength=len(table)).tolist() == table["n_tokens"].tolist()
    assert (np.diff(table["tokens.turn"]) >= 0).all()


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("rewrd", "did you mean 'reward'?"),
        ("episodes.retrn", "'episodes.return'"),
        ("succes", "did you mean 'success'?"),
    ],
)
def test_a_column_that_is_not_there_names_the_nearest(asked, near):
    table = build_table([rollout_graphs.flat()])
    with pytest.raises(CreditError, match=f"the turn table has no column '{asked}'") as caught:
        table[asked]
    assert near in str(caught.value) and str(caught.value).endswith(f"it has {', '.join(table.columns())}.")


def test_trees_are_numbered_over_all_groups():
    table = build_table([rollout_graphs.flat(), rollout_graphs.forked(), rollout_graphs.flat()])
    assert table["episodes.tree"].tolist() == [0, 1, *[2] * (len(table["episodes.tree"]) - 4), 3, 4]


def test_masks_that_appear_late_are_false_before_and_after():
    graph = rollout_graphs.flat()
    masked = graph.nodes[4]
    masked.masks = {"switch": [[0, 1]], "action": [[1, 2]]}
    graph.nodes[6].masks = {"action": [[0, 2]]}
    table = build_table([rollout_graphs.flat(), graph, rollout_graphs.flat()])
    assert {column.dtype for name, column in table.tokens.items() if name in ("switch", "action")} == {np.dtype(bool)}
    assert {len(column) for column in table.tokens.values()} == {int(table["n_tokens"].sum())}
    offset = len(rollout_graphs.flat().nodes)
    where = {name: np.flatnonzero(table[f"tokens.{name}"]) for name in ("switch", "action")}
    starts = np.concatenate([[0], np.cumsum(table["n_tokens"])])
    assert where["switch"].tolist() == [starts[offset + 4]]
    assert where["action"].tolist() == [starts[offset + 4] + 1, starts[offset + 6], starts[offset + 6] + 1]


def test_missing_logprobs_are_nan_not_zero():
    graph = rollout_graphs.flat()
    graph.nodes[1].logprobs = []
    table = build_table([graph])
    assert np.isnan(table["tokens.logprob"]).tolist() == (table["tokens.turn"] == 1).tolist()
    assert np.isnan(table["entropy"]).tolist() == [i == 1 for i in range(len(table))]


def test_numbers_in_extra_become_columns_and_are_nan_elsewhere():
    graph = rollout_graphs.flat()
    graph.nodes[2].extra = {"judge": 0.5, "note": "text"}
    table = build_table([graph])
    assert table["judge"][2] == 0.5 and np.isnan(np.delete(table["judge"], 2)).all()
    assert "note" not in table


def test_anchors_are_numbered_across_groups():
    graph = rollout_graphs.flat()
    graph.nodes[0].anchor = None
    table = build_table([graph, rollout_graphs.flat()])
    assert table["anchor"][0] == -1
    names = ["" if code < 0 else table.anchors[code] for code in table["anchor"]]
    assert names[1:] == [node.anchor for node in (graph.nodes + rollout_graphs.flat().nodes)[1:]]


@pytest.mark.parametrize(
    "path, value, words",
    [
        (("nodes", 2, "parent"), 2, "link that does not point back"),
        (("nodes", 2, "context"), 5, "link that does not point back"),
        (("nodes", 2, "plan"), 5, "link that does not point back"),
        (("nodes", 2, "id"), 1, "link that does not point back"),
        (("nodes", 2, "messages"), [Message("user", "go", [2])], "names a source that is not before it"),
        (("nodes", 2, "messages"), [Message("user", "go", [-1])], "names a source that is not before it"),
        (("nodes", 2, "logprobs"), [-1.0], "log-probs"),
        (("nodes", 2, "turn"), 0, "its parents make it"),
        (("nodes", 2, "prompt_tokens"), 1, "the server saw"),
        (("episodes", 1, "leaf"), 0, "does not share"),
    ],
)
def test_broken_links_are_named(path, value, words):
    graph = copy.deepcopy(rollout_graphs.forked())
    kind, number, name = path
    setattr(getattr(graph, kind)[number], name, value)
    if words == "does not share":
        graph.episodes[1].shared = 2
    with pytest.raises(GraphError, match=words):
        graph.check()


@quick
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted).map(list), max_size=4), st.integers(0, 8))
def test_cut_spans_mark_the_tokens_that_they_marked(spans, cut):
    def marked(spans):
        return {token for start, stop in spans for token in range(start, stop)}

    head, tail = cut_spans({"a": spans}, 0, cut)["a"], cut_spans({"a": spans}, cut, 8)["a"]
    assert marked(head) | {cut + token for token in marked(tail)} == marked(spans)
    empty = sum(start == stop for start, stop in spans)
    assert sum(start == stop for start, stop in [*head, *tail]) <= empty, "a span beyond the cut leaves nothing behind"


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("decision", [{}, {"kept": True}, {"kept": False}])
def test_only_an_evaluated_leaf_that_was_not_kept_is_withheld(trained, decision):
    record = EpisodeRecord(0, trained=trained, decision=decision)
    assert record.withheld == (not trained and decision == {"kept": False})


def test_contexts_that_repeat_many_turns_are_refused_and_a_long_one_is_not(monkeypatch):
    monkeypatch.setattr(invariants, "MOST_STEPS", 40)
    graph = long_chain(30)
    graph.check()  # a context that goes on is stored once, however long it is
    for node in graph.nodes[2::2]:
        node.context = node.id - 2
    with pytest.raises(GraphError, match="turns together"):
        graph.check()


def long_chain(count):
    graph = rollout_graphs.flat(n=1)
    first = graph.nodes[0]
    graph.nodes = [
        dataclasses.replace(
            first, id=n, parent=n - 1, context=n - 1, turn=n, plan=-1, prompt_tokens=0, done=n == count - 1
        )
        for n in range(count)
    ]
    graph.episodes[0].leaf = count - 1
    graph.credit = []
    return graph


@given(st.lists(st.integers(-1, 10**6), max_size=30))
def test_the_places_of_subtrees_are_those_of_a_walk(drawn):
    """Each node is followed by everything below it, its children in their order."""
    parents = [-1 if chosen < 0 or not node else chosen % node for node, chosen in enumerate(drawn)]
    below = [[child for child, parent in enumerate(parents) if parent == node] for node in range(len(parents))]
    walk: list[int] = []

    def visit(node):
        start = len(walk)
        walk.append(node)
        for child in below[node]:
            visit(child)
        sizes[node] = len(walk) - start

    sizes = [0] * len(parents)
    for root, parent in enumerate(parents):
        if parent < 0:
            visit(root)
    assert invariants.subtrees(parents) == ([walk.index(node) for node in range(len(parents))], sizes)


@pytest.mark.parametrize("seed", range(40))
def test_a_node_that_is_cut_is_two_with_the_same_tokens(seed):
    """Wherever it is cut, whatever forks share it, and with every number of the graph renamed."""
    graph, dice = random_graph(seed), random.Random(seed)
    long = [node for node in graph.nodes if len(node.action) > 1]
    if not long:
        return
    node = dice.choice(long)
    number, at, before = node.id, dice.randrange(1, len(node.action)), copy.deepcopy(graph)
    first = graph.split(node, at)
    graph.check()
    assert first.id == number and node.id == number + 1 and len(graph.nodes) == len(before.nodes) + 1

    def renamed(each):
        return each + (each >= number)

    whole = before.nodes[number]
    assert first.action == whole.action[:at] and node.action == whole.action[at:] and first.partial
    assert first.observation == whole.observation and node.observation == [] and node.partial == whole.partial
    assert (node.reward, node.done, node.valid) == (whole.reward, whole.done, whole.valid)
    assert (first.reward, first.done, first.truncated, first.valid) == (0, False, False, True)
    for name in ("logprobs", "entropy"):
        assert getattr(first, name) + getattr(node, name) == getattr(whole, name)
    for old in before.nodes:
        new = graph.nodes[renamed(old.id)]
        inside = first.action if old.id == number else []
        assert graph.prompt(new.id) == before.prompt(old.id) + inside
        assert new.plan == (renamed(old.plan) if old.plan >= 0 else -1)
    for old, new in zip(before.episodes, graph.episodes, strict=True):
        path = before.path(old.id)
        assert [each for each in graph.path(new.id) if each != number] == [renamed(each) for each in path]
        assert new.shared == old.shared + (old.source >= 0 and number in path[: old.shared])
        assert graph.turns(new.id) == before.turns(old.id)
    for wrong in (0, len(node.action), -1):
        with pytest.raises(ValueError, match=f"cannot cut {len(node.action)} tokens after {wrong}"):
            graph.split(node, wrong)


@pytest.mark.parametrize("seed", range(30))
def test_sorted_nodes_stand_episode_by_episode(seed):
    graph, dice = random_graph(seed), random.Random(seed)
    before, marks = copy.deepcopy(graph), {}
    place = [*range(len(graph.nodes))]
    dice.shuffle(place)
    for node in graph.nodes:  # any other numbers, by which the order within an episode is kept
        marks[id(node)] = node.id
    graph.sort()
    order = sorted(before.nodes, key=lambda node: (node.episode, node.id))
    assert [marks[id(node)] for node in graph.nodes] == [node.id for node in order]
    assert [node.id for node in graph.nodes] == [*range(len(order))]
    new = {node.id: number for number, node in enumerate(order)} | {-1: -1}
    for old, node in zip(order, graph.nodes, strict=True):
        links = (new[old.parent], new[old.context], new[old.plan])
        assert (node.parent, node.context, node.plan) == links
    assert [episode.leaf for episode in graph.episodes] == [new[episode.leaf] for episode in before.episodes]


def test_equal_words_of_rewarded_episodes_are_one_answer():
    graph = RolloutGraph(task={"uid": "u"})
    texts = ("a", " a ", "a", "b", "b")
    for number, (parent, text) in enumerate(zip((-1, -1, -1, 0, 1), texts, strict=True)):
        graph.nodes.append(Node(number, parent, -1, 0, "a", "r", 0, int(parent >= 0), 0, -1, [1], [2], [], text=text))
    for leaf, ret in ((0, 1.0), (1, 0.5), (2, 0.0), (2, -1.0), (3, 1.0), (4, 1e-9), (-1, 1.0)):
        graph.episodes.append(EpisodeRecord(len(graph.episodes), leaf=leaf, ret=ret, status="finished"))
    one, same, lost, worse, longer, again, without = light_of([graph]).columns.episodes["answers"].to_pylist()
    assert one == same and longer == again != one and len(one) == len(longer) == 16
    assert lost is worse is without is None


def test_a_graph_says_how_many_turns_an_episode_has():
    graph = RolloutGraph(
        task={"uid": "u"}, episodes=[EpisodeRecord(0), EpisodeRecord(1, leaf=0), EpisodeRecord(2, leaf=1)]
    )
    for number, (turn, partial) in enumerate(((0, False), (1, True))):
        graph.nodes.append(Node(number, number - 1, -1, 0, "a", "r", 0, turn, 0, -1, [1], [2], [], partial=partial))
    assert [graph.turns(number) for number in range(3)] == [0, 1, 1]
