"""Rows of several policies in one step: whose each is, and that the loss of each is weighed as if it were alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from verl_hier.credit import Credit
from verl_hier.credit.tables import make_table
from verl_hier.training.ledger import Ledger
from verl_hier_plugins.estimators import grpo

UNITS = ("row", "turn", "episode", "role", "token")
RULES = ("once", "first_owner", "repeat", "average")
quick = settings(max_examples=60, deadline=None)


def with_policies(graphs, names):
    """The graphs, with a policy for each context."""
    for graph in graphs:
        for node in graph.nodes:
            node.policy = graph.nodes[node.context].policy if node.context >= 0 else names[node.id % len(names)]
    return graphs


@st.composite
def batches(draw, names=("default", "second", "third")):
    graphs = [draw(rollout_graphs.trees(uid)) for uid in ("b", "a")[: draw(st.integers(1, 2))]]
    return with_policies(graphs, names), draw(st.sampled_from(RULES))


def made(graphs, rule):
    light, keys, rows = sent(graphs, rule)
    return Ledger(light, keys), rows, np.concatenate([row.mask for _, row in rows]) if rows else np.zeros(0)


@quick
@given(batches())
def test_a_row_has_the_policy_of_its_turns(batch):
    graphs = {graph.task["uid"]: graph for graph in batch[0]}
    ledger, rows, _ = made(*batch)
    assert ledger.policies == [graphs[uid].nodes[row.nodes[0]].policy for uid, row in rows]
    for name, (uid, row) in zip(ledger.policies, rows, strict=True):
        assert {graphs[uid].nodes[node].policy for node in row.nodes} == {name}


@quick
@given(batches(), st.sampled_from(UNITS), st.booleans())
def test_weights_of_a_policy_are_those_that_it_would_have_alone(batch, unit, row_mean):
    ledger, rows, mask = made(*batch)
    if not rows:
        return
    credit = Credit(np.ones(len(ledger.table)))
    weights = ledger.weights(credit, mask, unit, batch[1], row_mean)
    owner = np.asarray(ledger.policies)[ledger.row]
    for name in {*ledger.policies}:
        mine = owner == name
        alone = ledger._weights(credit, np.where(mine, mask, 0), unit, batch[1], row_mean)
        assert (weights is None) == (alone is None)
        if weights is not None:
            assert np.array_equal(weights[mine], alone[mine]) and not alone[~mine].any()
            if not row_mean and not (unit == "token" and batch[1] == "first_owner"):
                assert weights[mine].sum() == pytest.approx(mask[mine].sum())


@quick
@given(batches())
def test_the_turn_table_says_whose_each_turn_is(batch):
    graphs = {graph.task["uid"]: graph for graph in batch[0]}
    ledger, _, _ = made(*batch)
    table = ledger.table
    if len(table):
        names = np.asarray(table.names["policy"])[table["policy"]]
        assert {*names} <= {node.policy for graph in graphs.values() for node in graph.nodes}
        owner = np.asarray(ledger.policies)
        assert [*names[ledger.turn[ledger.turn >= 0]]] == [*owner[ledger.row[ledger.turn >= 0]]]


def test_turns_are_compared_within_their_policy():
    """Two policies whose scores differ by 10: within each, the better half is above 0."""
    table = make_table(
        {"group": [0] * 4, "episode": [0, 1, 2, 3], "policy": ["a", "b", "a", "b"], "reward": [1.0, 11.0, 3.0, 13.0]}
    )
    credit = grpo.advantage(table, grpo.GRPOOptions(group_by=("group", "policy")))
    assert [*np.sign(credit.values)] == [-1, -1, 1, 1]
    assert [*np.sign(grpo.advantage(table, grpo.GRPOOptions()).values)] == [-1, 1, -1, 1]


@quick
@given(batches(names=("default",)), st.sampled_from(UNITS))
def test_with_one_policy_nothing_is_divided(batch, unit):
    ledger, rows, mask = made(*batch)
    if not rows:
        return
    credit = Credit(np.ones(len(ledger.table)))
    both = [call(credit, mask, unit, batch[1], False) for call in (ledger.weights, ledger._weights)]
    assert (both[0] is None and both[1] is None) or np.array_equal(*both)
