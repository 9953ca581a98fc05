"""The turn table and the ledger, against the same one turn and one token at a time: every array, bit for bit."""

import copy
import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from tests.fixtures.random_graphs import random_graph
from tests.fixtures.slow_table import SlowLedger, TableBuilder
from verl_hier.credit import Credit
from verl_hier.graph import TurnTable, number_turns, read_graphs
from verl_hier.training.ledger import Ledger

RULES = ("once", "first_owner", "repeat", "average")
UNITS = ("token", "row", "turn", "episode", "role")


def same(left, right):
    """Whether two arrays have one type, one shape and the same bits."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def table_difference(found: TurnTable, expected: TurnTable) -> str | None:
    """The first thing in which two tables differ; the order of columns does not count."""
    for part in ("turns", "episodes", "tokens"):
        ours, theirs = getattr(found, part), getattr(expected, part)
        if set(ours) != set(theirs):
            return f"{part}: {set(ours) ^ set(theirs)}"
        for name in ours:
            if not same(ours[name], theirs[name]):
                return f"{part}: {name}"
    for name in ("step_episode", "step_turn"):
        if not same(getattr(found, name), getattr(expected, name)):
            return name
    return None if (found.names, found.anchors) == (expected.names, expected.anchors) else "names"


def numbers_of(turn_of):
    return {node: turn for node, turn in enumerate(turn_of.tolist()) if turn >= 0}


def compare(graphs, rule, dice) -> int:
    """Compare everything that a step computes from some graphs; returns how many arrays were compared."""
    graphs = [copy.deepcopy(graph) for graph in graphs]
    for place, graph in enumerate(graphs):
        graph.task["uid"] = f"u{place}"
    light, keys, rows = sent(graphs, rule)
    mask = np.concatenate([np.zeros(0), *(np.asarray(row.mask, float) for _, row in rows)])
    builder = TableBuilder()
    for graph in graphs:
        builder.add(graph)
    table, turn_of = number_turns(graphs)
    assert table_difference(table, builder.build()) is None
    assert [numbers_of(part) for part in turn_of] == builder.turn_of
    kept = [graph for graph in graphs if graph.task["uid"] in light.uids]
    slow = SlowLedger(kept, [(light.uids.index(uid), row.episode, row.turn_index) for uid, row in rows])
    return len(table.turns) + compare_ledgers(Ledger(light, keys), slow, kept, mask, rule, dice)


def compare_ledgers(ledger, slow, graphs, mask, rule, dice) -> int:
    assert table_difference(ledger.table, slow.table) is None
    for name in ("turn", "row", "episode", "phase_weight"):
        assert same(getattr(ledger, name), getattr(slow, name)), name
    assert same(ledger.token_positions(), slow.token_positions())
    sizes = {"turn": len(ledger.table), "step": len(ledger.table.step_turn)}
    sizes["token"] = len(ledger.table.tokens.get("turn", ()))
    for per, size in sizes.items():
        values = np.asarray([dice.choice([0.0, -0.0, dice.gauss(0, 1)]) for _ in range(size)])
        if size:
            assert same(ledger.spread(values, per, rule), slow.spread(values, per, rule)), per
            found = [each.tolist() for each in ledger.node_credit(Credit(values, per))]
            assert found == slow.node_credit(graphs, Credit(values, per))
    weight = np.asarray([dice.choice([0.0, 1.0, dice.random()]) for _ in range(len(ledger.table))])
    for credit in (Credit(np.zeros(len(weight))), Credit(np.zeros(len(weight)), weight=weight)):
        for by in UNITS if len(weight) else ():
            found, expected = (each.weights(credit, mask, by, rule) for each in (ledger, slow))
            assert (found is None) == (expected is None) and (found is None or same(found, expected)), by
    return 20


def compare_random(seed):
    """A step of some random graphs with a rule."""
    dice = random.Random(seed)
    graphs = [random_graph(dice.randrange(2**32)) for _ in range(dice.randrange(1, 5))]
    compare(graphs, dice.choice(RULES), dice)
    return len(graphs)


def test_random_steps():
    assert sum(compare_random(seed) for seed in range(40)) > 80


@pytest.mark.slow
def test_a_thousand_random_graphs():
    assert sum(compare_random(seed) for seed in range(1000, 1600)) > 1000


@pytest.mark.parametrize("rule", RULES)
def test_recorded_rollouts(rule):
    graphs = [*read_graphs(rollout_graphs.GOLDEN), *(make() for make in rollout_graphs.ROLLED_OUT.values())]
    compare(graphs, rule, random.Random(0))


@settings(max_examples=25, deadline=None)
@given(st.lists(rollout_graphs.trees(), min_size=1, max_size=2), st.sampled_from(RULES))
def test_trees_that_shrink(graphs, rule):
    compare(graphs, rule, random.Random(1))


@pytest.mark.parametrize("leaves", [9, 130, 200])
def test_means_of_many_leaves_are_those_of_numpy(leaves):
    """numpy adds eight numbers side by side, and from 128 on the sums of halves."""
    graph = rollout_graphs.flat(n=1)
    dice = random.Random(leaves)
    for number in range(1, leaves):
        twin = dataclasses.replace(graph.episodes[0], id=number, source=0, shared=len(graph.path(0)))
        twin.ret = dice.gauss(0, 1)
        graph.episodes.append(twin)
    compare([graph], "once", dice)


FAULTS = {
    "a turn of another episode": lambda table: table.turns["episode"].__setitem__(0, 1),
    "a mean in another order": lambda table: table.turns["return"].__setitem__(0, np.nextafter(table["return"][0], 9)),
    "a type": lambda table: table.turns.update(level=table["level"].astype(np.int32)),
    "the sign of a zero": lambda table: table.turns.update(reward=np.negative(table["reward"])),
    "a column too many": lambda table: table.turns.update(more=table["level"]),
    "a column too few": lambda table: table.turns.pop("row"),
    "a name": lambda table: table.names.update(role=("nobody",)),
    "steps": lambda table: table.step_turn.__setitem__(0, 1),
    "a token": lambda table: table.tokens["logprob"].__setitem__(0, 0.0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_finds_what_differs(fault):
    graphs = [rollout_graphs.forked()]
    table = number_turns(graphs)[0]
    FAULTS[fault](table)
    assert table_difference(table, number_turns(graphs)[0]) is not None
