"""AT²PO, TreeRPO, BranPO, RTMC, IPA, EPO, GDRO and RAE from their formulas, turn by turn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verl_hier.credit.trees import under_tasks
from verl_hier.testing import credit_of, make_table
from verl_hier.testing.builtin import full_credit
from verl_hier.testing.estimator import permuted, random_table
from verl_hier_plugins.estimators.at2po import entropies
from verl_hier_plugins.estimators.epo import EPOOptions, push
from verl_hier_plugins.estimators.ipa import mismatch
from verl_hier_plugins.estimators.rae import turns_left

SEEDS = pytest.mark.parametrize("seed", range(4))


def tree(seed):
    """A shuffled batch of trees in which everything is trained."""
    table = permuted(random_table(seed, groups=3, tree=True), seed)[0]
    table.turns["trained"] = np.ones(len(table), bool)
    table.episodes["trained"] = np.ones(len(table.episodes["return"]), bool)
    return table


def children(table, group, node):
    """Turns after a turn, or the first turns of a task for node -1."""
    return [t for t in range(len(table)) if table["parent"][t] == node and (node >= 0 or table["group"][t] == group)]


def value_of(table, scores, weight, group, node):
    """Value of a turn (or of the task, node -1) by recursion; `weight` is a child's say."""
    below = children(table, group, node)
    if not below:
        return scores[node]
    say = [weight(child) for child in below]
    values = [value_of(table, scores, weight, group, child) for child in below]
    return sum(s * v for s, v in zip(say, values, strict=True)) / sum(say)


def leaf_count(table, group, node):
    below = children(table, group, node)
    return sum(leaf_count(table, group, child) for child in below) if below else 1


@SEEDS
@pytest.mark.parametrize("value", ["child_softmax", "child_mean", "leaf_mean"])
def test_at2po_by_recursion(seed, value):
    table = tree(seed)
    surprise = entropies(table, "surprise")
    returns, of = table["episodes.return"], table["episodes.group"]
    scores = {}
    for episode, leaf in enumerate(table["episodes.leaf"]):
        same = returns[of == of[episode]]
        scores[leaf] = (returns[episode] - same.mean()) / (same.std() + 1e-6)
    for turn in range(len(table)):
        group, above = table["group"][turn], table["parent"][turn]
        weight = {
            "child_softmax": lambda node: math.exp(surprise[node]),
            "child_mean": lambda node: 1.0,
            "leaf_mean": lambda node, group=group: leaf_count(table, group, node),
        }[value]
        own, root, up = (value_of(table, scores, weight, group, node) for node in (turn, -1, above))
        for form, expected in (
            ("node_value", own),
            ("diff_parent", own - up),
            ("diff_global", own - root),
            ("diff_localglobal", 2 * own - root - up),
        ):
            found = credit_of("at2po", table, value=value, advantage=form)[turn]
            assert found == pytest.approx(expected, abs=1e-9), form
        if turn > 12:
            break


def test_at2po_takes_the_mean_surprise_of_a_turn():
    tokens = {"turn": [0, 0, 1], "logprob": [-1.0, -3.0, -0.5]}
    table = make_table({"parent": [-1, -1], "entropy": [9.0, 9.0]}, tokens=tokens)
    assert entropies(table, "surprise").tolist() == [2.0, 0.5] and entropies(table, "entropy").tolist() == [9, 9]


def test_tasks_stand_above_their_first_turns():
    parent, task = under_tasks([-1, 0, -1, -1], [7, 7, 3, 7])
    assert parent.tolist() == [5, 0, 4, 5, -1, -1] and task.tolist() == [5, 5, 4, 5]
    assert [len(part) for part in under_tasks([], [])] == [0, 0]


@SEEDS
def test_treerpo_by_recursion(seed):
    table = tree(seed)
    scores = dict(zip(table["episodes.leaf"].tolist(), table["episodes.return"].tolist(), strict=True))
    credit = full_credit("treerpo", table)
    for turn in range(len(table)):
        group = table["group"][turn]
        siblings = children(table, group, table["parent"][turn])
        values = [value_of(table, scores, lambda node: 1.0, group, node) for node in siblings]
        wide = np.std(values) >= 0.1
        assert credit.weight[turn] == wide
        own = values[siblings.index(turn)]
        expected = (own - np.mean(values)) / (np.std(values, ddof=1) + 1e-6) if wide else 0.0
        assert credit.values[turn] == pytest.approx(expected, abs=1e-9)


def test_branpo_example():
    """One base with two endings, and two bases without a second one."""
    turns = {
        "parent": [-1, 0, 0, -1, -1],
        "suffix": [0, 1, 1, 1, 1],
        "preference": [0, 1, -1, 0, 0],
        "reward": [0.0, 1.0, 0.0, 0.0, 1.0],
    }
    credit = credit_of("branpo", make_table(turns), scale="none")
    # The only base keeps its raw return; endings have the mean 1/2.
    assert credit.tolist() == [0.5, 0.5, -0.5, -0.5, 0.5]


def test_branpo_never_praises_the_worse_of_two_endings():
    turns = {
        "parent": [-1, 0, 0, -1],
        "suffix": [0, 1, 1, 1],
        "preference": [0, 1, -1, 0],
        "reward": [0.0, 1.0, 1.0, 0.0],
    }
    credit = credit_of("branpo", make_table(turns), scale="none")
    assert credit[1] == pytest.approx(1 / 3) and credit[2] == 0 and credit[3] == pytest.approx(-2 / 3)


def test_branpo_may_leave_out_tasks_that_teach_nothing():
    turns = {"group": [0, 0, 1, 1, 2, 2], "suffix": [1] * 6, "preference": [0] * 6, "reward": [1.0, 1, 0, 0, 1, 0]}
    assert full_credit("branpo", make_table(turns), drop_uniform=True).weight.tolist() == [0, 0, 0, 0, 1, 1]
    assert full_credit("branpo", make_table(turns)).weight is None


def test_rtmc_example():
    """In one state action x was followed by 1 and by 0, action y by 0."""
    turns = {"episode": [0, 0, 1, 1, 2, 2], "anchor": ["s", "x", "s", "x", "s", "y"], "reward": [0.0, 1, 0, 0, 0, 0]}
    credit = credit_of("rtmc", make_table(turns))
    np.testing.assert_allclose(credit[[0, 2, 4]], [1 / 6, 1 / 6, -1 / 3])
    # The end with a reward and the one without are two actions in x.
    np.testing.assert_allclose(credit[[1, 3, 5]], [0.5, -0.5, 0.0])


@SEEDS
def test_rtmc_by_hand(seed):
    table = permuted(random_table(seed, groups=3), seed)[0]
    gamma, shrink = 0.9, 0.5
    paths = [table.step_turn[table.step_episode == e].tolist() for e in range(len(table.episodes["return"]))]
    visits = []
    for path in paths:
        seen = set()
        for place, turn in enumerate(path):
            after = [gamma**k * table["reward"][t] for k, t in enumerate(path[place:])]
            last = place + 1 == len(path)
            effect = ("end", table["reward"][turn] > 0) if last else int(table["anchor"][path[place + 1]])
            state = (int(table["group"][turn]), int(table["anchor"][turn]))
            trained = bool(table["trained"][turn])
            firsts = (state not in seen and trained, (state, effect) not in seen and trained)
            seen |= {state, (state, effect)}
            visits.append((turn, state, effect, sum(after), *firsts))
    credit = credit_of("rtmc", table, gamma=gamma, shrink=shrink)
    for turn, state, effect, *_ in visits:
        if not table["trained"][turn]:
            continue
        mine = [v[3] for v in visits if v[1] == state and v[4]]
        prior = [v[3] for v in visits if v[1][0] == state[0] and v[4]]
        same = [v[3] for v in visits if v[1:3] == (state, effect) and v[5]]
        value = (sum(mine) + shrink * np.mean(prior)) / (len(mine) + shrink)
        assert credit[turn] == pytest.approx(np.mean(same) - value)


def test_ipa_discounts_the_return_by_the_turns_that_follow():
    table = make_table({"episode": [0, 0, 0, 1], "reward": [0.0, 0.0, 1.0, 0.0]})
    np.testing.assert_allclose(credit_of("ipa", table, gamma=0.9), [0.81, 0.9, 1.0, 0.0])
    np.testing.assert_allclose(credit_of("ipa", table, gamma=0.9, offset=0.5), [0.405, 0.45, 0.5, -0.5])


def test_ipa_leaves_out_turns_far_off_the_rollout_policy():
    tokens = {"turn": [0, 0, 1], "logprob": [-1.0, -4.0, -1.0], "old_logprob": [-0.5, -0.5, -1.0]}
    table = make_table({"reward": [1.0, 1.0]}, tokens=tokens)
    np.testing.assert_allclose(mismatch(table), [math.exp(2.0), 1.0])
    assert full_credit("ipa", table).weight.tolist() == [0, 1]
    assert full_credit("ipa", table, most_mismatch=8.0).weight.tolist() == [1, 1]
    assert full_credit("ipa", table, most_mismatch=None).weight is None


@pytest.mark.parametrize(("mean", "sign"), [(10.0, 1.0), (1e-3, -1.0), (None, 0.0)])
def test_the_push_of_epo_has_the_gradient_of_the_entropy(mean, sign):
    """Its product with the score function, averaged over the choices of a token, is the gradient of the entropy."""
    logits = np.array([0.3, -1.2, 0.9, 0.0])

    def entropy_of(x):
        p = np.exp(x) / np.exp(x).sum()
        return -(p * np.log(p)).sum()

    p, entropy = np.exp(logits) / np.exp(logits).sum(), entropy_of(logits)
    table = make_table(
        {"reward": np.zeros(4), "entropy_mean": np.full(4, entropy if mean is None else mean), "smoothing": np.ones(4)},
        tokens={"turn": np.arange(4), "logprob": np.log(p), "entropy": np.full(4, entropy)},
    )
    scores = np.eye(4) - p  # gradient of log p of each choice
    expected = [(entropy_of(logits + 1e-6 * e) - entropy_of(logits - 1e-6 * e)) / 2e-6 for e in np.eye(4)]
    found = (p[:, None] * push(table, EPOOptions())[:, None] * scores).sum(0)
    np.testing.assert_allclose(found, sign * np.array(expected), atol=1e-8)


def test_epo_without_strength_is_grpo():
    table = random_table(5)
    plain = credit_of("grpo", table)[table["tokens.turn"]]
    np.testing.assert_allclose(credit_of("epo", table, strength=0.0), plain)
    assert not np.allclose(credit_of("epo", table, strength=1.0), plain)


def test_explicit_policy_optimisation_scores_turns():
    table = make_table({"episode": [0, 0, 1], "reward": [0.25, 1.0, -1.0]})
    assert credit_of("epo_explicit", table).tolist() == [0.25, 1.0, -1.0]
    assert credit_of("epo_explicit", table, gamma=0.5).tolist() == [0.75, 1.0, -1.0]


def test_gdro_is_grpo_times_the_weight_of_the_class():
    table = random_table(6)
    expected = credit_of("grpo", table) * table["class_weight"]
    np.testing.assert_array_equal(credit_of("gdro", table), expected)


def test_rae_example():
    turns = {"episode": [0, 0, 1], "role": [0, 1, 0], "own_return": [1.0, -1.0, 0.5], "baseline": [0.25, 0.0, 0.5]}
    credit = full_credit("rae", make_table(turns))
    assert credit.values.tolist() == [0.75, -1.0, 0.0] and credit.weight.tolist() == [1, 1, 0]
    assert full_credit("rae", make_table(turns), drop_zero=False).weight.tolist() == [1, 1, 1]
    cut = make_table({**turns, "complete": [True, False, True]})
    assert full_credit("rae", cut).weight.tolist() == [1, 0, 0]
    assert full_credit("rae", cut, mask_cut=False).weight.tolist() == [1, 1, 0]


@SEEDS
def test_own_turns_left(seed):
    table = permuted(random_table(seed), seed)[0]
    for turn in range(len(table)):
        same = (table["episode"] == table["episode"][turn]) & (table["role"] == table["role"][turn])
        assert turns_left(table)[turn] == (same & (table["turn"] > table["turn"][turn])).sum()
