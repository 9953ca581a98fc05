"""The ledger: every unit has an equal say, and credit reaches the tokens of its turns and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from verl_hier.credit import Credit
from verl_hier.errors import CreditError
from verl_hier.graph.columnar.light import light_of
from verl_hier.training.ledger import Ledger
from verl_hier.training.schedule import Phase

quick = settings(max_examples=60, deadline=None)
UNITS = ("row", "turn", "episode", "role")
RULES = ("once", "first_owner", "repeat", "average")


def make(graphs, rule="once"):
    """The ledger of graphs, its rows, and the mask of trained tokens."""
    light, keys, rows = sent(graphs, rule)
    mask = np.concatenate([row.mask for _, row in rows]) if rows else np.zeros(0)
    return Ledger(light, keys), rows, mask


@st.composite
def batches(draw):
    graphs = [draw(rollout_graphs.trees(uid)) for uid in ("b", "a")[: draw(st.integers(1, 2))]]
    return graphs, draw(st.sampled_from(RULES))


def one_credit(ledger, value=1.0):
    return Credit(np.full(len(ledger.table), value))


def by_uid(graphs):
    return {graph.task["uid"]: graph for graph in graphs}


def units_of(by, graphs, rows):
    """(N,) the unit of each token, slowly: a label that says who it is."""
    labels = []
    for number, (uid, row) in enumerate(rows):
        for node in row.turn_index:
            role = graphs[uid].nodes[node].role if node >= 0 else ""
            labels.append({"row": number, "turn": (uid, node), "episode": (uid, row.episode), "role": role}[by])
    return labels


@quick
@given(batches(), st.sampled_from(UNITS))
def test_every_unit_has_an_equal_say(batch, by):
    ledger, rows, mask = make(*batch)
    if not rows:
        return
    weights = ledger.weights(one_credit(ledger), mask, by, batch[1])
    assert weights.sum() == pytest.approx(mask.sum())
    assert ((weights > 0) == (mask > 0)).all()
    labels = units_of(by, by_uid(batch[0]), rows)
    totals = {}
    for label, weight, trained in zip(labels, weights, mask, strict=True):
        if trained:
            totals[label] = totals.get(label, 0.0) + weight
    share = mask.sum() / len(totals)
    assert list(totals.values()) == pytest.approx([share] * len(totals))


@quick
@given(batches())
def test_tokens_are_left_to_verl_or_count_their_episodes(batch):
    graphs, rule = batch
    ledger, rows, mask = make(graphs, rule)
    if not rows:
        return
    weights = ledger.weights(one_credit(ledger), mask, "token", rule)
    if rule != "first_owner":
        assert weights is None
        return
    expected = [
        mask * sum(node in graph.path(episode.id) for episode in graph.complete())
        for uid, row in rows
        for graph in [by_uid(graphs)[uid]]
        for node, mask in zip(row.turn_index, row.mask, strict=True)
    ]
    assert weights.tolist() == expected


@pytest.mark.parametrize("by", [*UNITS, "token"])
def test_the_weight_of_the_credit_is_multiplied_in(by):
    ledger, _, mask = make([rollout_graphs.hierarchical()])
    weight = 1.0 + np.arange(len(ledger.table))
    plain = ledger.weights(one_credit(ledger), mask, by, "once")
    plain = mask if plain is None else plain
    weighted = ledger.weights(Credit(np.ones(len(ledger.table)), weight=weight), mask, by, "once")
    np.testing.assert_allclose(weighted, plain * weight[np.maximum(ledger.turn, 0)])


@pytest.mark.parametrize("by", [*UNITS, "token"])
def test_turns_of_weight_0_count_as_if_they_were_not_in_the_step(by):
    """verl divides by all tokens, so the others have to make up for those of the dropped task."""
    graphs = {"a": rollout_graphs.hierarchical(), "b": rollout_graphs.windowed()}
    for uid, graph in graphs.items():
        graph.task["uid"] = uid
    ledger, rows, mask = make(graphs.values())
    dropped = np.asarray(ledger.table["group"]) == 0
    weights = ledger.weights(Credit(np.ones(len(dropped)), weight=(~dropped).astype(float)), mask, by, "once")
    gone = dropped[np.maximum(ledger.turn, 0)] | (mask == 0)
    assert not weights[gone].any() and weights.sum() == pytest.approx(mask.sum())
    alone, _, only = make([graphs["b"]])
    expected = alone.weights(one_credit(alone), only, by, "once")
    expected = only if expected is None else expected
    found = np.concatenate([part for part, (uid, _) in zip(ledger.split(weights), rows, strict=True) if uid == "b"])
    np.testing.assert_allclose(found, expected * mask.sum() / only.sum())


def test_an_episode_of_many_rows_weighs_as_much_as_one_of_few():
    """Windowed contexts make a row a turn: the longer episode has more rows and the same say."""
    ledger, rows, mask = make([rollout_graphs.windowed()])
    counts = [sum(row.episode == episode for _, row in rows) for episode in (0, 1)]
    assert counts[0] != counts[1]
    for by, equal in (("episode", True), ("row", False)):
        weights = ledger.weights(one_credit(ledger), mask, by, "once")
        say = np.bincount(ledger.episode[ledger.row], weights)
        assert bool(say[0] == pytest.approx(say[1])) is equal


@quick
@given(batches(), st.randoms(use_true_random=False))
def test_credit_per_turn_reaches_its_tokens(batch, random):
    ledger, rows, _ = make(*batch)
    values = np.array([random.random() for _ in range(len(ledger.table))])
    spread = ledger.spread(values, "turn", batch[1])
    turns = [-1 if node < 0 else turn_number(ledger, uid, node) for uid, row in rows for node in row.turn_index]
    assert ledger.turn.tolist() == turns
    assert spread.tolist() == [0.0 if turn < 0 else values[turn] for turn in turns]


def turn_number(ledger, uid, node):
    return ledger._turn_of[ledger.light.uids.index(uid)][node]


@quick
@given(batches(), st.randoms(use_true_random=False))
def test_credit_per_step_is_the_episodes_own_with_repeat_and_the_mean_otherwise(batch, random):
    graphs, rule = batch
    ledger, rows, _ = make(graphs, rule)
    if not rows:
        return
    steps = list(zip(ledger.table.step_episode.tolist(), ledger.table.step_turn.tolist(), strict=True))
    values = np.array([random.random() for _ in steps])
    spread = ledger.spread(values, "step", rule)
    for place, turn in enumerate(ledger.turn.tolist()):
        if turn < 0:
            assert spread[place] == 0
            continue
        own = steps.index((ledger.episode[ledger.row[place]], turn))
        mean = np.mean([value for (_, t), value in zip(steps, values, strict=True) if t == turn])
        assert spread[place] == pytest.approx(values[own] if rule == "repeat" else mean)


@quick
@given(batches())
def test_credit_per_token_reaches_its_token(batch):
    """The value of a token is its id, so it must arrive where the id stands."""
    graphs, rule = batch
    ledger, rows, _ = make(graphs, rule)
    if not rows:
        return
    ids = np.zeros(len(ledger.table["tokens.turn"]))
    for uid, turn_of in zip(ledger.light.uids, ledger._turn_of, strict=True):
        for node, turn in zip(by_uid(graphs)[uid].nodes, turn_of.tolist(), strict=True):
            ids[ledger.table["tokens.turn"] == turn] = node.action if turn >= 0 else 0
    response = np.concatenate([row.response for _, row in rows])
    spread = ledger.spread(ids, "token", rule)
    assert spread.tolist() == np.where(ledger.turn >= 0, response, 0).tolist()


@quick
@given(batches())
def test_split_undoes_the_concatenation(batch):
    ledger, rows, mask = make(*batch)
    assert [part.tolist() for part in ledger.split(mask)] == [row.mask for _, row in rows]


@pytest.mark.parametrize("per", ["turn", "step", "token"])
def test_node_credit_is_the_mean_over_steps_and_tokens(per):
    graph = rollout_graphs.forked()
    ledger, _, _ = make([graph])
    table = ledger.table
    where = {"turn": np.arange(len(table)), "step": table.step_turn, "token": table["tokens.turn"]}[per]
    values = np.arange(len(where), dtype=float)
    (credit,) = ledger.node_credit(Credit(values, per))
    assert credit.tolist() == pytest.approx([values[where == turn].mean() for turn in range(len(table))])


def test_nodes_of_lost_episodes_have_no_credit():
    graph = rollout_graphs.flat()
    graph.episodes[1].status = "failed"
    ledger, _, _ = make([graph])
    (credit,) = ledger.node_credit(one_credit(ledger, 2.0))
    lost = set(graph.path(1))
    assert credit.tolist() == [0.0 if node.id in lost else 2.0 for node in graph.nodes]


def test_graphs_are_taken_in_the_order_of_their_uids():
    graphs = [rollout_graphs.flat(), rollout_graphs.hierarchical()]
    for graph, uid in zip(graphs, "ba", strict=True):
        graph.task["uid"] = uid
    ledger, _, _ = make(graphs)
    assert ledger.light.uids == ["a", "b"]
    assert ledger.table["group"].tolist() == sorted(ledger.table["group"].tolist())


def test_a_row_without_its_graph_is_refused():
    with pytest.raises(CreditError, match="task lost arrived without their rollout graph"):
        Ledger(light_of([]), ["lost_0_0"])


def test_only_the_phase_is_trained():
    graph = rollout_graphs.hierarchical()
    graph.phase = Phase("B", levels=frozenset({1})).to_dict()
    ledger, rows, mask = make([graph])
    assert (ledger.table["level"][ledger.turn[mask > 0]] == 1).all()
    assert not ledger.table["trained"][ledger.table["level"] == 0].any()
    assert {row.episode for _, row in rows} == {episode.id for episode in graph.episodes if episode.trained}


@pytest.mark.parametrize("by", [*UNITS, "token"])
def test_a_soft_phase_weighs_its_levels(by):
    """The weights of the phase come after the equal say, and only for the task whose phase has them."""
    soft, hard = rollout_graphs.hierarchical(), rollout_graphs.hierarchical()
    soft.task["uid"], hard.task["uid"] = "a", "b"
    plain_ledger, _, mask = make([soft, hard])
    plain = plain_ledger.weights(one_credit(plain_ledger), mask, by, "once")
    plain = mask if plain is None else plain
    soft.phase = Phase("A", weights=((0, 0.25),)).to_dict()
    ledger, rows, _ = make([soft, hard])
    expected = [
        weight * (0.25 if uid == "a" and node >= 0 and soft.nodes[node].level == 0 else 1.0)
        for (uid, node), weight in zip(
            [(uid, node) for uid, row in rows for node in row.turn_index], plain, strict=True
        )
    ]
    np.testing.assert_allclose(ledger.weights(one_credit(ledger), mask, by, "once"), expected)
    assert np.asarray(expected).sum() < plain.sum()


@pytest.mark.parametrize("key", ["u_7_0", "u_0_1", "u_0_7", "u_1_9999999"])
def test_a_row_that_its_task_does_not_have_is_refused(key):
    light, keys, _ = sent([rollout_graphs.flat()])
    with pytest.raises(CreditError, match=f"the row {key} is not among those of its task"):
        Ledger(light, [*keys, key])


def test_what_explains_the_credit_of_a_node():
    """The weight of a turn is the mean over its trained tokens, and a group is the episodes that ended regularly."""
    graph = rollout_graphs.flat(n=3)
    graph.episodes[2].status = "failed"
    ledger, rows, mask = make([graph])
    weights = np.random.default_rng(0).random(len(mask)) * mask
    difference = np.random.default_rng(1).random(len(mask))
    found = ledger.explain(one_credit(ledger, 2.0), weights, mask, difference)["u"]
    lost = set(graph.path(2))
    assert found["group_size"].tolist() == [2] * len(graph.nodes)
    assert found["credit"].tolist() == [0.0 if node.id in lost else 2.0 for node in graph.nodes]
    nodes = np.concatenate([row.turn_index for _, row in rows])
    expected = [0.0 if node.id in lost else weights[(nodes == node.id) & (mask > 0)].mean() for node in graph.nodes]
    assert found["weight"].tolist() == pytest.approx(expected)
    apart = [np.nan if node.id in lost else difference[(nodes == node.id) & (mask > 0)].mean() for node in graph.nodes]
    assert found["logprob_difference"].tolist() == pytest.approx(apart, nan_ok=True)
    assert "logprob_difference" not in ledger.explain(one_credit(ledger), weights, mask)["u"]


@settings(max_examples=15, deadline=None)
@given(batches(), st.randoms(use_true_random=False), st.sampled_from([0.3, 0.8, 1.0]))
def test_what_a_correction_leaves_nothing_of_is_neither_compared_nor_trained(batch, random, share):
    graphs, rule = batch
    ledger, _, mask = make(graphs, rule)
    table = ledger.table
    if not len(table):
        return
    before = {name: np.array(table[name]) for name in ("trained", "return", "leaves", "episodes.trained")}
    left = np.array([int(bool(trained) and random.random() < share) for trained in mask])
    ledger.reject(mask, left)
    had, has = (
        {turn for turn, token in zip(ledger.turn.tolist(), part, strict=True) if token} for part in (mask, left)
    )
    gone = had - has
    paths = [
        table.step_turn[table.step_episode == episode].tolist() for episode in range(len(before["episodes.trained"]))
    ]
    lost = {number for number, path in enumerate(paths) if had & {*path} and not has & {*path}}
    assert table["trained"].tolist() == [bool(old) and turn not in gone for turn, old in enumerate(before["trained"])]
    expected = [bool(old) and number not in lost for number, old in enumerate(before["episodes.trained"])]
    assert table["episodes.trained"].tolist() == expected
    for turn, path in (
        (turn, {number for number, path in enumerate(paths) if turn in path}) for turn in range(len(table))
    ):
        others = path - lost
        assert table["leaves"][turn] == len(others)
        returns = [table["episodes.return"][number] for number in others]
        assert table["return"][turn] == pytest.approx(np.mean(returns) if others else before["return"][turn])


def test_a_correction_that_leaves_a_token_of_every_turn_changes_nothing():
    ledger, _, mask = make([rollout_graphs.forked()])
    first = np.append(True, ledger.turn[1:] != ledger.turn[:-1])
    trained = ledger.table.turns["trained"]
    ledger.reject(mask, mask * first)
    assert ledger.table.turns["trained"] is trained
