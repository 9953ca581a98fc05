"""Credit against the obvious way: loops over rows, turns and tokens, and exact values at the bounds of each rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures import reference_kernels
from verl_hier.credit import (
    Credit,
    episode_sum,
    group_advantage,
    group_ids,
    group_mean,
    group_median,
    group_sum,
    linear_scan,
    rewards_to_go,
    share,
    singletons,
    trees,
    turn_credit,
    turn_gae,
    whiten,
)
from verl_hier.credit.estimate import check_needs, estimate
from verl_hier.credit.explain import explain, explaining, term
from verl_hier.credit.groups import EPS, equal_scores, no_spread, number
from verl_hier.credit.paths import (
    code_mask,
    episode_votes,
    episodes_to_turns,
    format_penalty,
    step_mean,
    step_sum,
    token_chain,
    turn_votes,
    unordered,
)
from verl_hier.credit.relative import drop_weights, return_advantage, turn_advantage
from verl_hier.credit.segments import chain_links, discounted_sum, segment_sums, shift_back
from verl_hier.credit.tokens import combine_levels, row_positions, token_bounds
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.testing import make_table

quick = settings(max_examples=60, deadline=None)
wide = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.sampled_from([0, 2**61, 2**62, -(2**62)]))


# Keys


@quick
@given(st.lists(st.tuples(wide, wide, wide), min_size=1, max_size=12))
@example([(0, 0, 0), (2**61, 1, 2), (2**61, 2**61, 2**61), (0, 2**61, 1), (1, 0, 0)])
def test_keys_of_any_integers_are_numbered_in_the_order_of_the_rows(rows):
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    for count in (1, 2, 3):
        cut = [row[:count] for row in rows]
        places = {row: place for place, row in enumerate(sorted(set(cut)))}
        assert group_ids(*columns[:count]).tolist() == [places[row] for row in cut]
    numbers, size = number(columns[0])
    assert size == len({row[0] for row in rows}) == numbers.max() + 1


def test_nothing_has_no_groups():
    none = np.zeros(0, np.int64)
    assert number(none)[0].shape == (0,) and number(none)[1] == 0
    assert group_ids(none).shape == group_ids(none, none).shape == (0,)
    assert group_sum([], none).shape == group_mean([], none).shape == (0,)
    assert group_sum([1.0, 2.0], np.array([0, 2])).tolist() == [1, 0, 2]
    assert group_sum([1.0], np.array([0]), 3).tolist() == [1, 0, 0]


@quick
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 3)), min_size=1))
def test_medians_are_those_of_repeated_rows(rows):
    rows = [*rows, *((key, 9.0, 1) for key in range(3))]  # each group has a row with a vote
    keys, values, weights = (np.array(column) for column in zip(*rows, strict=True))
    found, row = group_median(values, keys, weights.astype(float))
    plain, _ = group_median(values, keys)
    for key in range(3):
        mine = keys == key
        assert found[key] == reference_kernels.lower_median(np.repeat(values[mine], weights[mine]).tolist())
        assert plain[key] == reference_kernels.lower_median(values[mine].tolist())
        order = sorted(np.flatnonzero(mine), key=lambda each: (values[each], each))
        reached = np.cumsum(weights[order]) >= weights[mine].sum() / 2
        assert row[key] == order[int(np.argmax(reached))]


# The kernel at its bounds


def test_the_default_eps_is_added_to_the_deviation():
    values = group_advantage([0.0, 2.0], np.zeros(2, np.int64))
    np.testing.assert_allclose(values, np.array([-1, 1]) / (math.sqrt(2) + 1e-6), rtol=1e-12)
    assert EPS == 1e-6
    assert group_advantage([3.0], np.zeros(1, np.int64))[0] == 3.0 / (1 + 1e-6)


@pytest.mark.parametrize(
    ("vote", "alone"), [(1.0, True), (1 + 1e-9, True), (1 + 3e-9, False), (0.4, True), (2.0, False)]
)
def test_a_group_is_alone_with_one_vote(vote, alone):
    keys, weights = np.zeros(2, np.int64), [vote, 0.0]
    assert singletons(keys, weights).tolist() == [alone] * 2
    for centre in ("mean", "leave_one_out", "none"):
        values = group_advantage([3.0, 5.0], keys, weights=weights, scale="none", centre=centre, singleton="raw")
        assert (values.tolist() == [3.0, 5.0]) == (alone or centre == "none")
        values = group_advantage([3.0, 5.0], keys, weights=weights, scale="none", centre=centre, singleton="zero")
        assert (values.tolist() == [0.0, 0.0]) == alone


def test_a_spread_below_eps_is_one_only_where_the_rule_says_so():
    keys, scores = np.zeros(4, np.int64), [0.0, 0.0, 0.25, 0.5]
    options = {"centre": "median", "scale": "mad"}  # the median is 0 and the deviation 0
    by_std = group_advantage(scores, keys, eps=0.125)
    assert group_advantage(scores, keys, eps=0.125, zero_variance="std", **options).tolist() == by_std.tolist()
    assert not group_advantage(scores, keys, eps=0.125, **options).any()
    assert group_advantage(scores, keys, eps=0.125, zero_variance="divide", **options).tolist() == [0, 0, 2, 4]
    assert group_advantage(scores, keys, eps=0.0, zero_variance="divide", **options).tolist() == scores
    scores = [-0.5, 0.0, 0.5, 4.0]  # a deviation of 0.5
    equal = np.array(scores) / (0.5 + 0.5)
    for rule in ("zero", "divide", "std"):
        assert group_advantage(scores, keys, eps=0.5, zero_variance=rule, **options).tolist() == equal.tolist()
    below = group_advantage(scores, keys, eps=0.625, zero_variance="std", **options)
    assert below.tolist() == group_advantage(scores, keys, eps=0.625).tolist()
    for rule in ("zero", "divide"):
        found = group_advantage(scores, keys, eps=0.625, zero_variance=rule, **options)
        assert found.tolist() == (np.array(scores) / 1.125).tolist()
    for rule in ("zero", "divide", "std"):
        found = group_advantage([0.0, 0.1], np.zeros(2, np.int64), eps=9.0, zero_variance=rule)
        np.testing.assert_allclose(found, [-0.05 / (0.1 / 2**0.5 + 9), 0.05 / (0.1 / 2**0.5 + 9)], rtol=1e-12)


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 0.0]])
def test_what_does_not_count_may_be_anything(weights):
    keys, where = np.zeros(3, np.int64), [True, True, False]
    for bad in (np.nan, -np.inf, 7.0):
        with explaining() as record:
            values = group_advantage([1.0, 0.0, bad], keys, weights=weights, where=where, scale="none")
        assert values.tolist() == [0.5, -0.5, 0.0]
        (found,) = record.comparisons
        assert found.scores.tolist() == [1.0, 0.0, bad if np.isfinite(bad) else 0.0]
        assert found.votes.tolist() == [1, 1, 0] and found.result.tolist() == values.tolist()
        assert found.spread[:2].tolist() == [1, 1] and found.centre[:2].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("weights", [[1.0, np.nan], [-1e-9, 1.0]])
def test_votes_are_numbers_of_at_least_0(weights):
    with pytest.raises(CreditError, match="at least 0"):
        group_advantage([1.0, 2.0], np.zeros(2, np.int64), weights=weights)
    assert group_advantage([1.0, 2.0], np.zeros(2, np.int64), weights=[0, 0]).tolist() != []
    with pytest.raises(CreditError, match="shape of the keys"):
        group_advantage([1.0, 2.0], np.zeros(2, np.int64), weights=[1, 1], where=[True, False, True])


def test_a_comparison_says_what_was_compared():
    scores, keys = np.array([1.0, 3.0, 5.0, 8.0]), np.array([0, 0, 0, 1])
    with explaining() as record:
        group_advantage(scores, keys, centre="none", eps=0.5, singleton="zero")
        group_advantage(scores, keys, weights=[1, 1, 0, 1], scale="none")
        group_advantage(scores, keys, where=[True, True, False, True], centre="median")
    bare, weighted, narrowed = record.comparisons
    assert bare.rule == {"centre": "none", "scale": "sample", "eps": 0.5, "singleton": "zero", "zero variance": "zero"}
    assert bare.centre.tolist() == [0] * 4 and bare.votes.tolist() == [1] * 4 and bare.keys.tolist() == keys.tolist()
    assert bare.spread.tolist() == [2, 2, 2, 1] and bare.factor.tolist() == [0.4, 0.4, 0.4, 0]
    assert bare.result.tolist() == pytest.approx([0.4, 1.2, 2, 0]) and bare.scores.tolist() == scores.tolist()
    assert weighted.votes.tolist() == [1, 1, 0, 1] and weighted.spread.tolist() == [1] * 4
    assert weighted.centre.tolist() == [2, 2, 2, 8] and weighted.factor.tolist() == [1, 1, 1, 0]
    assert narrowed.votes.tolist() == [1, 1, 0, 1] and narrowed.centre[:2].tolist() == [1, 1]
    assert narrowed.factor[2] == 0 and narrowed.result[2] == 0


def test_equal_scores_are_several_and_finite():
    keys = np.array([0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6])
    scores = [0.0, 0.0, 1.0, 1.0, 1.0 + 1e-6, 0.1 + 0.2, 0.3, np.nan, np.nan, np.inf, np.inf, 1e12]
    assert equal_scores(scores, keys).tolist() == [True, False, False, True, False, False, False]
    assert no_spread([0.0, 1e-9, 2e-9, 1e-3], [0.0, 1.0, 1.0, -1e6]).tolist() == [True, True, False, True]


# Chains


def test_long_batches_are_solved_chain_by_chain():
    """Blocks of whole chains: shorter, longer and as long as a block, and one that ends the batch."""
    rng = np.random.default_rng(3)
    for lengths in ([1 << 15, 1, (1 << 15) - 1, 5], [70_000], [3] * 30_000, [40_000, 1, 1, 40_000]):
        size = sum(lengths)
        decay, values = np.full(size, 0.5), rng.random(size)
        decay[np.cumsum(lengths) - 1] = 0.0
        np.testing.assert_allclose(
            linear_scan(values, decay), reference_kernels.linear_scan(values, decay), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("length", range(1, 20))
def test_the_first_chain_may_be_the_longest(length):
    factor = [1.0] * (length - 1) + [0.0, 0.0]
    assert linear_scan(np.ones(length + 1), factor).tolist() == [*range(length, 0, -1), 1]


def test_links_of_short_chains():
    assert chain_links([]).tolist() == [] and chain_links([4]).tolist() == [False]
    assert chain_links([4, 4]).tolist() == [True, False] and chain_links([4, 4], [1, 2]).tolist() == [False, False]
    assert shift_back([1.0, 2.0], np.array([True, True])).tolist() == [2.0, 0.0]
    assert shift_back([1.0, 2.0, 3.0], np.array([True, False, False])).tolist() == [2.0, 0.0, 0.0]
    assert shift_back([], np.zeros(0, bool)).tolist() == []
    assert discounted_sum([1.0, 1.0], np.array([True, False]), 0.5).tolist() == [1.5, 1.0]
    assert segment_sums([1.0, 2.0], np.array([True, False]))[0].tolist() == [3.0]


def test_whitening_at_its_bounds():
    assert whiten([5.0]).tolist() == [0.0] and whiten([5.0, 9.0], [True, False]).tolist() == [0.0, 0.0]
    assert whiten([5.0, np.nan], [False, False]).tolist() == [0.0, 0.0] and whiten([]).tolist() == []
    shared = whiten([1.0, 3.0], weights=[0.5, 0.5])  # one vote together: centred, not scaled
    np.testing.assert_allclose(shared, [-1.0, 1.0], rtol=1e-7)
    found = whiten([1.0, 3.0, 99.0], [True, True, False], weights=[1.0, 1.0, 5.0])
    np.testing.assert_allclose(found, [-1 / math.sqrt(2 + 1e-8), 1 / math.sqrt(2 + 1e-8), 0.0], rtol=1e-14)
    np.testing.assert_allclose(whiten([0.0, 1e-4]), np.array([-5e-5, 5e-5]) / math.sqrt(5e-9 + 1e-8), rtol=1e-9)


# Trees


@pytest.mark.parametrize("bad", [[-2], [0], [-1, 2], [1, 0], [-1, 1], [-1, 2, 1]])
def test_links_that_lead_nowhere_are_refused(bad):
    with pytest.raises(CreditError, match="parent ids"):
        trees.path_sum(bad, [1.0] * len(bad))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 1023, 1024, 1025])
def test_chains_of_any_length(size):
    parent = np.arange(-1, size - 1)
    values = np.zeros(size)
    values[:1] = 3.0
    assert trees.depths(parent).tolist() == list(range(size))
    assert trees.path_sum(parent, np.ones(size)).tolist() == list(range(1, size + 1))
    assert trees.inherit_zero(parent, values).tolist() == [3.0] * size
    assert trees.run_starts(parent, np.zeros(size)).tolist() == [0] * size
    assert trees.subtree_sum(parent, np.ones(size)).tolist() == list(range(size, 0, -1))
    levels = [nodes.tolist() for nodes in trees.levels_up(parent)]
    assert levels == [[node] for node in range(size - 1, 0, -1)]


def test_tasks_of_nothing_are_none():
    parent, task = trees.under_tasks([], [])
    assert parent.shape == task.shape == (0,)
    parent, task = trees.under_tasks([-1, 0, -1], ["b", "b", "a"])
    assert parent.tolist() == [4, 0, 3, -1, -1] and task.tolist() == [4, 4, 3]
    assert trees.above([-1, 0, 1], [1.0, 2.0, 4.0]).tolist() == [0, 1, 2]
    assert trees.node_difference([-1, 0, 1], [1.0, 2.0, 4.0]).tolist() == [1, 1, 2]
    assert trees.above([-1, -1, 0], [1.0, 2.0, 4.0], [7.0, 8.0, 9.0]).tolist() == [7, 8, 1]
    assert trees.inherit_zero([-1, 0, 1, 2], [5.0, 0.0, 2.0, 0.0]).tolist() == [5, 5, 2, 2]


@quick
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(-3, 3)), min_size=1, max_size=10))
def test_values_of_nodes_are_the_mean_of_the_votes_below(rows):
    parent = [min(link, node) - 1 for node, (link, _, _) in enumerate(rows)]
    votes, values = [row[1] for row in rows], [float(row[2]) for row in rows]

    def value(node):
        below = [each for each, up in enumerate(parent) if up == node]
        total = sum(votes[each] for each in below)
        if not below:
            return values[node]
        return sum(votes[each] * value(each) for each in below) / total if total else 0.0

    want = [value(node) for node in range(len(parent))]
    np.testing.assert_allclose(trees.children_mean(parent, values, votes), want, atol=1e-12)


# Tables


@st.composite
def tables(draw):
    """Trees of several tasks, some of whose turns are not trained, in chains or not, with tokens."""
    count = draw(st.integers(1, 9))
    chains = draw(st.booleans())
    parent = [node - 1 if chains and draw(st.booleans()) else draw(st.integers(-1, node - 1)) for node in range(count)]
    root = []
    for node, up in enumerate(parent):
        root.append(node if up < 0 else root[up])
    tokens = [draw(st.integers(0, 3)) for _ in range(count)]
    return make_table(
        {
            "parent": parent,
            "group": [each % 2 for each in root],
            "reward": [draw(st.sampled_from([0.0, 1.0, -0.5])) for _ in range(count)],
            "trained": [draw(st.booleans()) for _ in range(count)],
            "valid": [draw(st.booleans()) for _ in range(count)],
            "role": [draw(st.sampled_from(["low", "high"])) for _ in range(count)],
            "row": [draw(st.integers(0, 3)) for _ in range(count)],
            "n_tokens": tokens,
            "n_prompt": [draw(st.integers(0, 3)) for _ in range(count)],
            "bootstrap": [draw(st.sampled_from([0.0, 2.0])) for _ in range(count)],
        },
        tokens={"turn": np.repeat(np.arange(count), tokens)},
    )


def paths_of(table: TurnTable) -> list[list[int]]:
    """The turns of each episode, walked up from its leaf."""
    paths = [reference_kernels.up(table["parent"], leaf)[::-1] for leaf in table["episodes.leaf"]]
    return [[int(turn) for turn in path] for path in paths]


@quick
@given(tables())
def test_a_table_of_trees_is_that_of_a_walk(table):
    parent, paths = table["parent"], paths_of(table)
    leaves = [node for node in range(len(table)) if node not in parent]
    assert table["episodes.leaf"].tolist() == leaves
    assert table.step_turn.tolist() == [turn for path in paths for turn in path]
    assert table.step_episode.tolist() == [number for number, path in enumerate(paths) for _ in path]
    through = [[number for number, path in enumerate(paths) if turn in path] for turn in range(len(table))]
    assert table["episode"].tolist() == [min(each) for each in through]
    assert table["leaves"].tolist() == [len(each) for each in through]
    ups = [len(reference_kernels.up(parent, turn)) - 1 for turn in range(len(table))]
    assert table["turn"].tolist() == table["depth"].tolist() == ups
    assert table["done"].tolist() == [turn in leaves for turn in range(len(table))]
    returns = [sum(table["reward"][turn] for turn in path) for path in paths]
    np.testing.assert_allclose(table["episodes.return"], returns, atol=1e-12)
    np.testing.assert_allclose(table["return"], [np.mean([returns[e] for e in each]) for each in through], atol=1e-12)
    assert table["episodes.trained"].tolist() == [bool(table["trained"][path].any()) for path in paths]
    assert table["episodes.turns"].tolist() == [len(path) for path in paths]
    groups = [table["group"][path[-1]] for path in paths]
    assert table["episodes.group"].tolist() == table["episodes.task"].tolist() == groups
    roots = sorted({path[0] for path in paths})
    assert table["episodes.tree"].tolist() == [roots.index(path[0]) for path in paths]
    assert np.isnan(table["episodes.success"]).all() and not table["episodes.withheld"].any()
    assert not table["episodes.source"].any() and table["complete"].all()
    np.testing.assert_allclose(episode_sum(table, table["reward"]), returns, atol=1e-12)


def test_a_table_of_chains_is_ordered_by_turn():
    table = make_table({"episode": ["b", "a", "b", "a"], "turn": [1, 1, 0, 0], "reward": [1.0, 2.0, 4.0, 8.0]})
    assert table.step_turn.tolist() == [3, 1, 2, 0] and table.step_episode.tolist() == [0, 0, 1, 1]
    assert table["parent"].tolist() == [2, 3, -1, -1] and table["done"].tolist() == [True, True, False, False]
    assert table["episodes.return"].tolist() == [10, 5] and table["return"].tolist() == [5, 10, 5, 10]
    assert table.names["episode"] == ("a", "b") and table["depth"].tolist() == [1, 1, 0, 0]
    table = make_table({"episode": [7, 3, 7, 3, 3]})
    assert table["turn"].tolist() == [0, 0, 1, 1, 2] and table["episode"].tolist() == [1, 0, 1, 0, 0]
    assert table["parent"].tolist() == [-1, -1, 0, 1, 3] and table["row"].tolist() == [1, 0, 1, 0, 0]
    alone = make_table({"reward": [1.0, 2.0]})
    assert alone["episode"].tolist() == [0, 1] and alone["done"].all() and alone["parent"].tolist() == [-1, -1]


def test_columns_that_are_missing_are_neutral():
    table = make_table({"reward": [1.0, 2.0], "truncated": [0, 1]})
    assert table["done"].tolist() == [True, False] and table["truncated"].dtype == np.bool_
    for name in ("group", "agent", "role", "level", "segment", "turn", "n_prompt"):
        assert table[name].tolist() == [0, 0]
    for name in ("plan", "anchor", "parent"):
        assert table[name].tolist() == [-1, -1]
    assert table["n_tokens"].tolist() == [1, 1] and table["entropy"].tolist() == [0, 0]
    assert table["valid"].all() and table["complete"].all() and table["trained"].all()
    assert make_table({"group": [0]})["reward"].tolist() == [0.0] and not make_table({"group": [0]})["truncated"].any()
    given = make_table({"reward": [1.0], "return": [5.0], "done": [0]}, episodes={"success": [1.0], "return": [4.0]})
    assert given["return"].tolist() == [5] and given["episodes.return"].tolist() == [4]
    assert given["episodes.success"].tolist() == [1] and given["done"].tolist() == [False]
    assert make_table({"reward": [1.0], "return": [5.0]})["episodes.return"].tolist() == [5]


def test_labels_bring_their_vocabulary():
    table = make_table({"anchor": ["x", "a", "x"], "role": ["r", "r", "q"]})
    assert table.anchors == ("a", "x") and table["anchor"].tolist() == [1, 0, 1] and table.code("role", "r") == 1
    table = make_table({"anchor": ["x", "a"]}, anchors=("one", "two"), names={"anchor": ("b", "y"), "role": ("z",)})
    assert table.anchors == ("one", "two") and table.names["anchor"] == ("b", "y") and table.names["role"] == ("z",)
    objects = make_table({"role": np.array(["r", 3], dtype=object)})
    assert objects.names["role"] == ("3", "r") and objects["role"].tolist() == [1, 0]


def test_tables_of_nothing_and_of_no_tree():
    empty = make_table({"reward": []})
    assert len(empty) == 0 and len(empty["episodes.return"]) == 0 and empty.step_turn.shape == (0,)
    for wrong in ([0], [-1, 1], [1, -1]):
        with pytest.raises(CreditError, match="before their children"):
            make_table({"parent": wrong})
    with pytest.raises(CreditError, match=r"different lengths: \[1, 2\]"):
        make_table({"reward": [1.0], "group": [0, 0]})


# From episodes to turns and back


@quick
@given(tables())
def test_votes_are_counted_one_by_one(table):
    paths, trained = paths_of(table), table["trained"]
    assert episode_votes(table, "episode") is None
    kept = [[turn for turn in path if trained[turn]] for path in paths]
    tokens = [sum(table["n_tokens"][turn] for turn in path) for path in kept]
    assert episode_votes(table, "token").tolist() == tokens
    assert episode_votes(table, "turn").tolist() == [len(path) for path in kept]
    for column in ("role", "row"):
        found = [len({table[column][turn] for turn in path}) for path in kept]
        assert episode_votes(table, column).tolist() == found


@quick
@given(tables(), st.booleans())
def test_units_of_turns_have_one_vote(table, narrowed):
    keys = group_ids(table["group"])
    where = table["valid"] if narrowed else None
    chosen = table["valid"] if narrowed else table["trained"]
    assert turn_votes(table, keys, "turn", where) is None
    tokens = turn_votes(table, keys, "token", where)
    assert tokens.tolist() == [count if keep else 0 for count, keep in zip(table["n_tokens"], chosen, strict=True)]
    for unit, columns in {"episode": ["episode"], "role": ["episode", "role"], "row": ["row"]}.items():
        blocks = list(zip(keys.tolist(), *(table[name].tolist() for name in columns), strict=True))
        votes = turn_votes(table, keys, unit, where)
        for turn, block in enumerate(blocks):
            others = sum(each == block and bool(keep) for each, keep in zip(blocks, chosen, strict=True))
            assert votes[turn] == (1 / others if chosen[turn] else 0)


@quick
@given(tables(), st.randoms(use_true_random=False))
def test_steps_are_averaged_over_the_episodes_of_a_turn(table, random):
    steps = [random.choice([0.0, 1.0, -2.0]) for _ in table.step_turn]
    where = np.array([random.random() < 0.6 for _ in steps], bool)
    of_turn = [np.flatnonzero(table.step_turn == turn) for turn in range(len(table))]
    taken = np.array(steps)
    assert step_sum(table, steps).tolist() == [taken[mine].sum() for mine in of_turn]
    np.testing.assert_allclose(step_mean(table, steps), [taken[mine].mean() for mine in of_turn], atol=1e-12)
    kept = [mine[where[mine]] for mine in of_turn]
    means = [taken[mine].mean() if len(mine) else 0.0 for mine in kept]
    np.testing.assert_allclose(step_mean(table, steps, where), means, atol=1e-12)
    np.testing.assert_allclose(turn_credit(table, Credit(taken, per="step")), step_mean(table, steps), atol=1e-12)
    episodes = [random.choice([0.0, 1.0, -2.0]) for _ in table["episodes.return"]]
    through = [table.step_episode[mine] for mine in of_turn]
    good = [[episodes[each] for each in mine if table["episodes.trained"][each]] for mine in through]
    want = [np.mean(each) if each and keep else 0.0 for each, keep in zip(good, table["trained"], strict=True)]
    np.testing.assert_allclose(episodes_to_turns(table, episodes), want, atol=1e-12)


@quick
@given(tables(), st.randoms(use_true_random=False))
def test_shared_steps_by_each_rule(table, random):
    steps = np.array([random.choice([0.0, 1.0, -2.0]) for _ in table.step_turn])
    kept = np.where(table["trained"][table.step_turn], steps, 0.0)
    repeat, average, owner = (share(table, steps, rule) for rule in ("repeat", "average", "owner"))
    assert repeat.per == "step" and repeat.values.tolist() == kept.tolist() and repeat.weight is None
    own = [
        kept[(table.step_turn == turn) & (table.step_episode == table["episode"][turn])].sum()
        for turn in range(len(table))
    ]
    assert owner.per == "turn" and owner.values.tolist() == own and owner.weight.tolist() == table["leaves"].tolist()
    for turn in range(len(table)):
        mine = kept[(table.step_turn == turn) & table["episodes.trained"][table.step_episode]]
        assert average.values[turn] == pytest.approx(mine.mean() if len(mine) else 0.0)


@quick
@given(tables(), st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 0.5]))
def test_advantages_over_time_are_those_of_each_path(table, gamma, lam):
    values = np.arange(len(table)) / 2.0
    found = [[] for _ in range(len(table))]
    to_go = [[] for _ in range(len(table))]
    for path in paths_of(table):
        carry = total = 0.0
        for turn, after in zip(path[::-1], [None, *path[:0:-1]], strict=True):
            done = table["done"][turn]
            following = 0.0 if done else table["bootstrap"][turn] if after is None else values[after]
            delta = table["reward"][turn] + gamma * following - values[turn]
            carry = delta + (0.0 if after is None or done else gamma * lam * carry)
            total = table["reward"][turn] + gamma * total
            found[turn].append(carry)
            to_go[turn].append(total)
    advantage, returns = turn_gae(table, values, gamma, lam)
    np.testing.assert_allclose(advantage, [np.mean(each) for each in found], atol=1e-12)
    np.testing.assert_allclose(returns, advantage + values, atol=1e-12)
    np.testing.assert_allclose(rewards_to_go(table, gamma), [np.mean(each) for each in to_go], atol=1e-12)


def test_a_cut_episode_bootstraps_and_a_done_turn_does_not():
    turns = {"episode": [0, 0, 1], "reward": [0.0, 1.0, 3.0], "done": [False, False, True], "bootstrap": [7.0] * 3}
    advantage, returns = turn_gae(make_table(turns), [1.0, 2.0, 4.0], 0.5, 1.0)
    assert advantage.tolist() == [0.5 * 2 - 1 + 0.5 * 2.5, 1 + 3.5 - 2, 3 - 4] and returns[2] == 3
    turns.pop("bootstrap")
    assert turn_gae(make_table(turns), [1.0, 2.0, 4.0], 0.5, 1.0)[0].tolist() == [-0.5, -1, -1]
    assert turn_gae(make_table(turns), [1.0, 2.0, 4.0], 0.5, 1.0, [5.0, 0.0, 0.0])[0].tolist() == [4, -2, -4]
    turns["done"] = [True, True, True]
    assert turn_gae(make_table(turns), [1.0, 2.0, 4.0], 0.5, 1.0)[0].tolist() == [-1, -1, -1]
    assert rewards_to_go(make_table(turns), 0.5, [1.0, 2.0, 4.0]).tolist() == [2, 2, 4]


@quick
@given(tables())
def test_tokens_have_their_turn_their_place_and_their_chain(table):
    turn = table["tokens.turn"]
    first, behind = token_bounds(turn, len(table))
    assert (behind - first).tolist() == table["n_tokens"].tolist()
    values = np.arange(len(turn)) * 1.0
    means = [values[turn == each].mean() if (turn == each).any() else 0.0 for each in range(len(table))]
    np.testing.assert_allclose(turn_credit(table, Credit(values, per="token")), means, atol=1e-12)
    order, links, ends = token_chain(table)
    wanted = sorted(range(len(turn)), key=lambda each: (table["episode"][turn[each]], table["turn"][turn[each]], each))
    assert order.tolist() == wanted and unordered(values[order], order).tolist() == values.tolist()
    after = [*wanted[1:], None][: len(wanted)]
    owner = table["episode"][turn]
    assert links.tolist() == [b is not None and owner[a] == owner[b] for a, b in zip(wanted, after, strict=True)]
    assert ends.tolist() == [b is None or turn[a] != turn[b] for a, b in zip(wanted, after, strict=True)]
    place = {}
    for row in set(table["row"].tolist()):
        at = 0
        mine = [each for each in np.lexsort((table["depth"],)) if table["row"][each] == row]
        for number_, each in enumerate(mine):
            at += table["n_prompt"][each] if number_ else 0
            for token in np.flatnonzero(turn == each):
                place[token] = at
                at += 1
    assert row_positions(table).tolist() == [place[token] for token in range(len(turn))]


def test_a_wrong_format_costs_its_amount():
    table = make_table({"valid": [True, False]})
    assert format_penalty(table, 0.5).tolist() == [0, 0.5] and format_penalty(table, 0.0).tolist() == [0, 0]
    known = make_table({"valid": [False, False, False], "format": [1.0, 0.0, 2.0]})
    assert format_penalty(known, 0.5).tolist() == [0, 0.5, 0]


def test_names_of_an_integer_column():
    table = make_table({"role": ["a", "b", "c"]})
    assert code_mask(table, "role", ["a"]).tolist() == [True, False, False]
    assert code_mask(table, "role", ["c", "none"]).tolist() == [False, False, True]
    with pytest.raises(CreditError, match="no role is called x or y; the worker has a, b, c"):
        code_mask(table, "role", ["x", "y"])
    with pytest.raises(CreditError, match="the worker has none"):
        code_mask(table, "agent", ["x"])


def test_levels_of_any_shape_and_weight():
    high, low = np.array([[1.0, 0.0, 2.0]] * 2), np.array([[0.0, 4.0, 6.0]] * 2)
    assert combine_levels([high, low], "replace", [2.0, 0.5]).tolist() == [[2, 2, 3]] * 2
    assert combine_levels([high, low], "sum", [2.0, 0.5]).tolist() == [[2, 2, 7]] * 2
    weighted = combine_levels([high, low, 0 * low], "weighted", [2.0, 0.5, 9.0])
    assert weighted.tolist() == [[1, 4, 7 / 2.5]] * 2
    assert combine_levels([[0.0], [0.0]], "weighted").tolist() == [0]
    with pytest.raises(CreditError, match="overlap"):
        combine_levels([[1.0], [-1.0]], "disjoint")
    assert combine_levels([[1.0], [-1.0]]).tolist() == [0]


# Groups of a table


@quick
@given(tables(), st.sampled_from(["turn", "episode", "token"]))
def test_turns_are_compared_with_the_trained_turns_of_their_group(table, unit):
    found = turn_advantage(table, table["reward"], ("group", "role"), weight_by=unit, where=table["valid"])
    keys, chosen = group_ids(table["group"], table["role"]), table["trained"] & table["valid"]
    votes = turn_votes(table, keys, unit, chosen)
    want = group_advantage(table["reward"], keys, weights=votes, where=chosen)
    assert found.tolist() == want.tolist() and not found[~chosen].any()
    dropped = drop_weights(table, ("group", "role"), unit)
    alone = singletons(keys, turn_votes(table, keys, unit, table["trained"]), table["trained"])
    assert dropped.tolist() == [0.0 if each else 1.0 for each in alone]


def test_a_penalty_gives_each_turn_a_score_of_its_own():
    table = make_table({"episode": [0, 0, 1], "reward": [0.0, 1.0, 0.0], "valid": [True, False, True]})
    plain = return_advantage(table, scale="none")
    assert plain.tolist() == [0.5, 0.5, -0.5]
    fined = return_advantage(table, 0.75, scale="none", weight_by="turn")
    scores = np.array([1.0, 0.25, 0.0])
    np.testing.assert_allclose(fined, scores - scores.mean(), atol=1e-12)


# What an estimator returns


def spec(advantage, *requires):
    return EstimatorSpec("mine", advantage, NoOptions, requires=requires)


TABLE = {"episode": [0, 0, 1], "reward": [0.0, 1.0, 2.0], "n_tokens": [1, 2, 1]}


@pytest.mark.parametrize(
    ("credit", "words"),
    [
        (np.zeros(2), r"shape \(2,\); per='turn' needs \(3,\)"),
        (Credit(np.zeros(3), per="token"), r"per='token' needs \(4,\)"),
        (Credit(np.zeros((3, 1))), "shape"),
        (np.array([0.0, np.nan, np.inf]), "returned nan"),
        (np.array([0.0, 1.0, -np.inf]), "returned -inf"),
        (Credit(np.zeros(3), tokens=np.ones(3, bool)), "each of the 4 action tokens whether"),
        (Credit(np.zeros(3), weight=np.ones(4)), "loss weight of at least 0 for each turn"),
        (Credit(np.zeros(3), weight=np.array([1.0, 0.0, -0.1])), "loss weight of at least 0"),
        (Credit(np.zeros(3), weight=np.array([1.0, np.nan, 0.1])), "loss weight of at least 0"),
        (Credit(np.zeros(3), factor=np.ones(3)), "one finite factor for each of the 4"),
        (Credit(np.zeros(3), factor=np.array([1.0, 0.0, np.inf, 1.0])), "one finite factor"),
    ],
)
def test_a_result_of_another_shape_is_refused(credit, words):
    table = make_table(TABLE, tokens={"turn": [0, 1, 1, 2]})
    with pytest.raises(CreditError, match=words) as caught:
        estimate(spec(lambda table, options: credit), table)
    assert "'mine'" in str(caught.value)


def test_a_result_at_its_bounds_is_taken():
    table = make_table(TABLE, tokens={"turn": [0, 1, 1, 2]})
    whole = Credit(
        np.zeros(4), "token", weight=np.array([0.0, 0.5, 1.0]), tokens=np.ones(4, bool), factor=np.array([0, -1, 1, 2])
    )
    assert estimate(spec(lambda table, options: whole), table) is whole
    assert estimate(spec(lambda table, options: [1, 2, 3]), table).values.tolist() == [1, 2, 3]
    bare = make_table(TABLE)
    nothing = Credit(np.zeros(3), tokens=np.zeros(0, bool), factor=np.zeros(0))
    assert estimate(spec(lambda table, options: nothing), bare) is nothing
    assert estimate(spec(lambda table, options: options), make_table({"reward": []}), []).values.shape == (0,)


def test_what_an_estimator_needs_is_there_and_finite():
    def nothing(table, options):
        return np.zeros(len(table))

    states = spec(nothing, "anchor")
    with pytest.raises(CreditError, match=r"column 'anchor'.*; every anchor of this batch is -1 \(no state named\)\.$"):
        estimate(states, make_table(TABLE))
    assert estimate(states, make_table({**TABLE, "anchor": [-1, 0, -1]})).per == "turn"
    assert len(estimate(states, make_table({"reward": []})).values) == 0
    with pytest.raises(CreditError, match="turn column 'reward' must be finite: entry 1 is nan; estimator 'mine'"):
        estimate(spec(nothing), make_table({**TABLE, "reward": [0.0, np.nan, np.inf]}))
    with pytest.raises(CreditError, match="episode column 'return' must be finite: entry 1 is inf"):
        estimate(spec(nothing, "episodes.return"), make_table(TABLE, episodes={"return": [0.0, np.inf]}))
    tokens = {"turn": [0, 1, 1, 2], "value": [0.0, 1.0, 2.0, np.nan]}
    with pytest.raises(CreditError, match="token column 'value' must be finite: entry 3 is nan"):
        estimate(spec(nothing, "tokens.value"), make_table(TABLE, tokens=tokens))
    assert estimate(spec(nothing, "episodes.success"), make_table(TABLE)).per == "turn"
    assert estimate(spec(nothing), make_table(TABLE, tokens=tokens)).per == "turn"
    with pytest.raises(CreditError, match=r"'mine' needs the column 'tokens\.value'"):
        check_needs(spec(nothing, "reward", "tokens.value"), ["reward"])


@pytest.mark.parametrize(
    ("column", "who", "remedy"),
    [
        ("plan", "the worker provides", "choose a worker that lists it in `provides` with `hier.worker.name`."),
        ("suffix", "the sampler provides", "choose a sampler that lists it in `provides` with `hier.sampler.name`."),
        ("value", "the critic provides", "set `critic.enable: true`."),
        ("info_gain", "the probe provides", "set `hier.probes: {true_answer: {}}`."),
        ("step_reward", "the process reward provides", "set `hier.process_reward: {}`."),
        ("unheard_of", "has to list in its `provides`", "`hier.schedule.name` or `hier.environment.name`."),
    ],
)
def test_a_missing_column_names_its_provider_and_the_line(column, who, remedy):
    with pytest.raises(CreditError, match=f"estimator 'mine' needs the column {column!r}") as caught:
        check_needs(spec(lambda table, options: None, column), [])
    assert who in str(caught.value) and str(caught.value).endswith(remedy)


def test_an_error_of_an_estimator_names_it_once():
    def fails(words):
        def advantage(table, options):
            raise CreditError(words)

        return advantage

    with pytest.raises(CreditError, match=r"^estimator 'mine': no\.$"):
        estimate(spec(fails("no.")), make_table(TABLE))
    with pytest.raises(CreditError, match=r"^mine has none\.$"):
        estimate(spec(fails("mine has none.")), make_table(TABLE))


# What an estimator says


def said(table, advantage):
    _, terms = explain(spec(advantage), table)
    return [each.name for each in terms]


def test_terms_are_believed_where_they_make_the_credit():
    table = make_table(
        {"parent": [-1, 0, 0, -1], "reward": [0.0, 1.0, 2.0, 4.0], "trained": [True, True, False, True]},
        tokens={"turn": [0, 1, 2, 3]},
    )
    reward, returns = np.array(table["reward"]), np.array(table["episodes.return"])
    steps = np.where(table["trained"][table.step_turn], returns[table.step_episode], 0.0)

    def turns(table, options):
        return 2.0 * term("a", reward, weight=2.0) + term("b", reward)

    assert said(table, turns) == ["a", "b"]
    assert said(table, lambda table, options: 3.0 * term("a", reward, weight=2.0)) == []
    assert said(table, lambda table, options: Credit(term("a", reward), per="token")) == []
    assert said(table, lambda table, options: reward) == []
    assert said(table, lambda table, options: np.where(table["trained"], term("a", reward), 9.0)) == ["a"]
    for rule in ("repeat", "average", "owner"):
        way = share(table, returns[table.step_episode], rule)
        assert said(table, lambda table, options, way=way: (term("a", returns, "episode"), way)[1]) == ["a"]
    mean = np.where(table["trained"], step_mean(table, returns[table.step_episode]), 0.0)
    assert said(table, lambda table, options: (term("a", returns, "episode"), mean)[1]) == ["a"]
    assert said(table, lambda table, options: (term("a", returns, "episode"), mean + 1)[1]) == []
    as_turns = Credit(steps[: len(table)], per="turn")
    assert said(table, lambda table, options: (term("a", returns, "episode"), as_turns)[1]) == []

    def mixed(table, options):
        term("b", returns, "episode")
        return term("a", reward)

    assert said(table, mixed) == []


def test_figures_and_comparisons_belong_to_the_next_term():
    table = make_table(TABLE)

    def advantage(table, options):
        first = term("a", group_advantage(table["reward"], group_ids(table["group"])), raw_reward=table["reward"])
        return first + term("b", np.zeros(3), weight=1.0)

    _, (a, b) = explain(spec(advantage), table)
    assert a.figures["raw reward"].tolist() == [0, 1, 2] and len(a.comparisons) == 1 and b.comparisons == []
    assert (a.weight, a.unit, b.figures) == (1.0, "turn", {}) and a.comparisons[0].unit == "turn"
