"""Rollout graphs in columns: what goes in comes out, and the turn table needs the light columns alone."""

import copy
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.fixtures import rollout_graphs
from tests.fixtures.random_graphs import random_graph
from tests.fixtures.slow_table import TableBuilder
from tests.unit.training.test_columns import table_difference
from verl_hier.errors import GraphError
from verl_hier.graph import Message, graph_rows, number_turns
from verl_hier.graph.columnar.decode import decode
from verl_hier.graph.columnar.encode import encode, encode_decisions, encode_heavy, encode_records
from verl_hier.graph.columnar.layout import HEAVY, Columns
from verl_hier.graph.columnar.light import light_of, pack, unpack
from verl_hier.graph.columnar.table import table_of


def beside(*tables):
    """One table with the columns of all."""
    columns = {name: table[name] for table in tables for name in table.column_names}
    return pa.table(columns)


def tables(graphs):
    """The tables of some graphs, with their heavy columns."""
    columns = encode(graphs)
    decisions = encode_decisions([episode for graph in graphs for episode in graph.episodes])
    heavy = encode_heavy([node for graph in graphs for node in graph.nodes])
    return (
        beside(columns.tasks, encode_records(graphs)),
        beside(columns.episodes, decisions),
        beside(columns.nodes, heavy),
    )


def without_credit(graphs):
    graphs = [copy.deepcopy(graph) for graph in graphs]
    for graph in graphs:
        graph.credit = []
    return graphs


def there_and_back(graphs):
    assert list(decode(*tables(graphs))) == without_credit(graphs)


def files_can_hold(graph):
    """A random graph without what JSON has no word for, and with at least a token in every action."""
    for node in graph.nodes:
        node.extra.pop("nothing", None)
    return all(node.action for node in graph.nodes)


def test_random_graphs_come_back():
    graphs = [graph for graph in (random_graph(seed, f"u{seed}") for seed in range(600)) if files_can_hold(graph)]
    assert len(graphs) > 100
    for start in range(0, len(graphs), 7):
        there_and_back(graphs[start : start + 7])


@pytest.mark.parametrize(
    "make", [*rollout_graphs.ROLLED_OUT.values(), rollout_graphs.golden], ids=lambda make: make.__name__
)
def test_recorded_rollouts_come_back(make):
    graphs = make()
    there_and_back(graphs if isinstance(graphs, list) else [graphs])


@settings(max_examples=40, deadline=None)
@given(rollout_graphs.trees())
def test_trees_come_back(graph):
    there_and_back([graph])


def test_nothing_comes_back():
    there_and_back([])


CHANGES = {
    "a token": lambda graph: graph.nodes[0].action.__setitem__(0, 77),
    "an observed token": lambda graph: graph.nodes[0].observation.__setitem__(0, 77),
    "a log-prob": lambda graph: graph.nodes[0].logprobs.__setitem__(0, -0.125),
    "an entropy": lambda graph: graph.nodes[1].entropy.__setitem__(0, 0.625),
    "a likely token": lambda graph: graph.nodes[1].top[0].__setitem__(0, [9, -0.5]),
    "a word": lambda graph: setattr(graph.nodes[0], "text", "other"),
    "a message": lambda graph: graph.nodes[0].messages.append(Message("user", "x", [])),
    "a source": lambda graph: graph.nodes[1].messages[0].sources.append(0),
    "a span": lambda graph: graph.nodes[0].masks.update(switch=[[1, 1]]),
    "a mask without a span": lambda graph: graph.nodes[1].masks.update(late=[]),
    "the type of an extra": lambda graph: graph.nodes[0].extra.update(judge=True),
    "a version": lambda graph: setattr(graph.nodes[0], "policy_version", [3, 5]),
    "a decision": lambda graph: graph.nodes[0].decision.update(why={"deep": [1]}),
    "a decision of an episode": lambda graph: graph.episodes[0].decision.update(kept=False),
    "a number of a reward": lambda graph: graph.episodes[0].reward_info.update(accuracy=0.5),
    "a success": lambda graph: setattr(graph.episodes[0], "success", None),
    "an anchor": lambda graph: setattr(graph.nodes[0], "anchor", None),
    "an empty anchor": lambda graph: setattr(graph.nodes[0], "anchor", ""),
    "a phase": lambda graph: graph.phase.update(name="B"),
    "seconds": lambda graph: graph.seconds.update(rollout=2.5),
    "a budget": lambda graph: graph.budget.update(tokens=[11.0, 64.0]),
    "a seed": lambda graph: setattr(graph, "seed", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_graph_reaches_its_columns(change):
    (before,) = without_credit([rollout_graphs.golden()[0]])
    changed = copy.deepcopy(before)
    CHANGES[change](changed)
    (found,) = decode(*tables([changed]))
    assert found == changed != before


def test_rows_that_are_missing_are_noticed():
    tasks, episodes, nodes = tables([rollout_graphs.flat(), rollout_graphs.flat()])
    for parts in ((tasks, episodes.slice(1), nodes), (tasks, episodes, nodes.slice(1))):
        with pytest.raises(GraphError, match="has fewer rows"):
            list(decode(*parts))


def test_what_no_file_can_hold_is_refused():
    graph = rollout_graphs.flat()
    graph.nodes[0].extra["thing"] = object()
    with pytest.raises(TypeError, match="'thing'"):
        encode_heavy(graph.nodes)
    graph = rollout_graphs.flat()
    graph.nodes[0].action[0] = 2**31
    with pytest.raises(OverflowError):
        encode_heavy(graph.nodes)


def test_the_turn_table_needs_no_heavy_column_until_a_token_is_asked_for():
    graphs = [random_graph(seed, f"u{seed}") for seed in range(20)]
    columns, asked = encode(graphs), []
    watched = Columns(
        columns.tasks, columns.episodes, columns.nodes, lambda name: asked.append(name) or columns.heavy(name)
    )
    table, _ = table_of(watched)
    expected = number_turns(graphs)[0]
    assert list(table.columns()) == list(expected.columns()) and not asked
    assert table_difference(table, expected) is None
    assert sorted(asked) == ["entropy", "logprobs"]


def test_columns_of_several_workers_make_one_table():
    """Each task was encoded by itself, as a rollout worker does."""
    for seed in range(40):
        dice = random.Random(seed)
        graphs = [random_graph(dice.randrange(2**32), f"u{place}") for place in range(dice.randrange(1, 6))]
        parts = [encode([graph]) for graph in graphs]
        joined = Columns(
            *(pa.concat_tables([getattr(part, name) for part in parts]) for name in ("tasks", "episodes", "nodes")),
            lambda name, parts=parts: pa.chunked_array(
                [chunk for part in parts for chunk in part.heavy(name).chunks], HEAVY.field(name).type
            ),
        )
        builder = TableBuilder()
        for graph in graphs:
            builder.add(graph)
        assert table_difference(table_of(joined)[0], builder.build()) is None


def test_the_light_part_of_several_tasks_is_that_of_their_bytes():
    graphs = [random_graph(seed, f"u{seed}") for seed in range(12)]
    rows = [graph_rows(graph, lambda node: True, "once") for graph in graphs]
    whole = light_of(graphs, rows)
    found = unpack([pack(light_of([graph], [cut])) for graph, cut in zip(graphs, rows, strict=True)])
    assert found.rows == whole.rows and found.uids == whole.uids == [graph.task["uid"] for graph in graphs]
    for kind in ("tasks", "episodes", "nodes"):
        # As texts, in which a number that is none equals another one.
        assert repr(getattr(found.columns, kind).to_pylist()) == repr(getattr(whole.columns, kind).to_pylist())
    assert unpack([]).uids == [] and unpack([]).rows == light_of([]).rows
