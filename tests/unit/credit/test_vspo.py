"""VSPO: closed forms, what holds for every batch, and what it changes in worlds whose exact gradient is known."""

from __future__ import annotations

import numpy as np
import pytest

from verl_hier.errors import CreditError
from verl_hier.host.manager import PluginHost
from verl_hier.lab.methods import method
from verl_hier.lab.steps import Steps
from verl_hier.lab.update import loss_gradient
from verl_hier.lab.worlds import WORLDS
from verl_hier.testing import credit_of, make_table
from verl_hier.testing.builtin import full_credit
from verl_hier.testing.estimator import random_table

ROOT_HALF = 2**-0.5


def batch(returns, groups, **columns):
    return make_table({"reward": returns, "group": groups, **columns})


def test_the_first_stage_that_spreads_is_compared():
    table = batch([0.0] * 4, [0, 0, 1, 1], valid=[1, 1, 1, 0], complete=[1, 0, 0, 1])
    found = full_credit("vspo", table, stage_weight=1.0, eps=0.0)
    assert found.values == pytest.approx([ROOT_HALF, -ROOT_HALF, ROOT_HALF, -ROOT_HALF])
    found = full_credit("vspo", table, stages=("complete",), stage_weight=0.25, eps=0.0)
    assert found.values == pytest.approx([ROOT_HALF / 4, -ROOT_HALF / 4, -ROOT_HALF / 4, ROOT_HALF / 4])


def test_a_stage_says_nothing_where_returns_spread():
    table = batch([1.0, 0.0], [0, 0], valid=[0, 1])
    assert credit_of("vspo", table, eps=0.0) == pytest.approx([ROOT_HALF, -ROOT_HALF])


def test_places_of_silent_tasks_go_to_difficult_and_uncertain_ones():
    """Means 1/4 and 3/4 with equal deviations: worths as 3 to 1, so of two silent places 1.5 and 0.5."""
    returns = [1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    groups = [0] * 4 + [1] * 4 + [2] * 2 + [3] * 2
    found = full_credit("vspo", batch(np.array(returns, float), groups), most=9.0)
    assert found.weight == pytest.approx([2.5] * 4 + [1.5] * 4 + [0.0] * 4)
    assert full_credit("vspo", batch(np.array(returns, float), groups)).weight[:4] == pytest.approx([2.0] * 4)
    assert full_credit("vspo", batch(np.array(returns, float), groups), most=1.0).weight is None


def test_where_all_tasks_are_silent_nothing_leaves_the_loss():
    found = full_credit("vspo", batch([1.0, 1.0, 0.0], [0, 0, 1]))
    assert found.values.tolist() == [0.0] * 3 and found.weight.tolist() == [1.0] * 3


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tree", [False, True])
def test_it_is_grpo_where_returns_spread_and_no_place_moves(seed, tree):
    table = random_table(seed, tree=tree)
    found = full_credit("vspo", table, most=1.0, stages=())
    assert np.allclose(found.values, full_credit("grpo", table, singleton="zero").values)


@pytest.mark.parametrize("seed", range(6))
def test_places_add_up_unless_one_is_cut(seed):
    table = random_table(seed, groups=6)
    table.episodes["return"] = np.where(table["episodes.group"] < 3, 0.5, table["episodes.return"])
    weight = full_credit("vspo", table, stages=(), most=100.0).weight
    tasks = [weight[table["group"] == group] for group in np.unique(table["group"])]
    assert all(np.ptp(each) < 1e-9 for each in tasks)
    if any(each[0] > 1 for each in tasks):
        assert sum(each[0] for each in tasks) == pytest.approx(len(tasks))


def test_a_stage_that_is_no_column_is_named():
    with pytest.raises(CreditError, match="no column 'formal'"):
        credit_of("vspo", batch([0.0, 0.0], [0, 0]), stages=("formal",))


def directions(world, name, options, batches=120):
    """The share of rows with a gradient, the mean cosine of a batch with the exact gradient, and that of the mean."""
    host = PluginHost.load({"builtin": True})
    logits = np.random.default_rng(0).normal(scale=0.5, size=world.legal.shape)
    policy, exact = world.policy(logits), world.gradient(logits).ravel()
    steps, found, rows, turns = Steps(world, method(name, host, options), 4, 0), [], 0, 0
    for _ in range(batches):
        played, weighted = steps.next(policy, "token")
        old = policy[played.state, played.action]
        found.append(loss_gradient(world, logits, played, weighted, old, np.inf).ravel())
        rows, turns = rows + int((weighted != 0).sum()), turns + len(weighted)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact)
    along = np.array(found) @ exact
    mean = np.mean(found, axis=0)
    cosine = np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0).mean()
    return rows / turns, cosine, float(mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact))


def test_more_rows_teach_and_a_batch_points_better_where_all_is_won_or_lost():
    world = WORLDS["maze"]
    plain = directions(world, "grpo", {})
    staged = directions(world, "vspo", {"stages": ("info_gain",), "most": 1.0})
    assert plain[0] < 0.35 and staged[0] > 0.9
    assert staged[1] > plain[1] + 0.02
    assert plain[2] > 0.99 > staged[2]  # the price: a stage is another goal, which does not average out
