"""The product's samplers and schedules in the lab."""

from __future__ import annotations

import numpy as np
import pytest

from verl_hier.errors import HierError
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import COLUMNS, method
from verl_hier.lab.parts import SAMPLERS, SCHEDULES, scheduled
from verl_hier.lab.reasons import NOT_RUN
from verl_hier.lab.sampled import play_sampled
from verl_hier.lab.smoke import check_learns
from verl_hier.lab.steps import Steps
from verl_hier.lab.worlds import WORLDS
from verl_hier.testing import check_estimator
from verl_hier.training.schedule import Phase

HOST = PluginHost.load({"builtin": True})
ALL = Phase("joint")


def policy_of(world, seed=0):
    return world.policy(np.random.default_rng(seed).normal(size=world.legal.shape))


def sampled(name, world, tasks=3, seed=0):
    made = method(f"{SAMPLERS[name].estimator}@{name}", HOST)
    return made, play_sampled(world, policy_of(world), tasks, made.shape, np.random.default_rng(seed), ALL)


def test_every_part_is_run_or_has_a_reason():
    assert set(SAMPLERS) == set(HOST.specs("sampler"))
    assert {*SCHEDULES, *NOT_RUN} == set(HOST.specs("schedule")) and not SCHEDULES.keys() & NOT_RUN.keys()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_plays_by_the_rules_of_the_world(name):
    world = WORLDS["two_clocks"]
    made, batch = sampled(name, world)
    table, state, action = batch.table, batch.state, batch.action
    assert set(COLUMNS) <= set(table.columns()) and batch.calls >= len(table)
    assert world.legal[state, action].all()
    inner = np.flatnonzero(table["parent"] >= 0)
    before = table["parent"][inner]
    direct = np.flatnonzero(world.moves[state[before], action[before], state[inner]] > 0)
    if name not in ("ccpo", "sharp"):
        # There, a role that is left out may have acted between two turns, and the turn before it has what that earned.
        assert len(direct) == len(inner) and np.array_equal(table["reward"], world.reward[state, action])
    values, _ = world.values(policy_of(world))
    kept = inner[direct]
    assert np.array_equal(table["value"][kept], values[table["turn"][kept], state[kept]])
    logs = np.log(policy_of(world)[state, action])
    assert np.allclose(table["tokens.logprob"], logs)
    assert np.isfinite(made.credit(table).values).all()
    _, again = sampled(name, world)
    assert np.array_equal(again.action, action) and again.calls == batch.calls
    assert learn(world, made, 0, Setting(turns=300, tasks=2)).updates


@pytest.mark.parametrize("name", ["stochastic", "early_end"])
def test_independent_episodes_of_the_real_path_have_the_exact_means(name):
    world = WORLDS[name]
    _, batch = sampled("independent", world, tasks=60)
    returns, won = batch.table.episodes["return"], batch.table.episodes["success"]
    assert len(returns) == 8 * 60
    policy = policy_of(world)
    for found, exact in ((returns, world.expected_return(policy)), (won, world.solved(policy))):
        # Episodes of one task that do the same meet the same chances.
        tasks = found.reshape(60, 8).mean(axis=1)
        assert abs(tasks.mean() - exact) <= 4.5 * tasks.std() / np.sqrt(len(tasks))


def test_what_is_given_up_counts_in_the_budget():
    _, more = sampled("grpo_roc", WORLDS["two_agents"])
    assert more.calls == 2 * len(more.table) == 2 * 3 * 8 * 6


def test_a_role_that_is_left_out_takes_no_turn():
    world = WORLDS["two_agents"]
    _, batch = sampled("ccpo", world)
    measured = ~batch.table.episodes["trained"]
    assert measured.sum() == 3 * 8
    alone = batch.table["episode"][batch.table["role"] == batch.table.code("role", "pioneer")]
    assert not measured[alone].any() and "solo_return" in batch.table


@pytest.mark.parametrize("name", scheduled())
def test_a_schedule_says_who_learns(name):
    world, schedule = WORLDS["noisy_plans"], name.rpartition("+")[2]
    steps = Steps(world, method(name, HOST), 4, 0)
    learned = []
    for _ in range(12):
        batch, weighted = steps.next(policy_of(world), "token")
        learned.append([level for level in (0, 1) if np.abs(weighted[batch.table["level"] == level]).sum() > 1e-3])
    assert {level for levels in learned for level in levels} == ({1} if schedule == "bottom_up" else {0, 1})
    if schedule in ("agents", "alternating", "stagewise"):
        assert max(map(len, learned)) == 1


def test_an_estimator_with_the_wrong_sign_does_not_learn():
    def right(table, options):
        return np.where(table["trained"], table["return"], 0.0)

    def wrong(table, options):
        return -right(table, options)

    for name, factory in (("right", right), ("wrong", wrong)):
        spec = EstimatorSpec(name, factory, NoOptions, requires=("return", "trained"))
        check_estimator(spec, timing=False)
        if factory is right:
            check_learns(spec, NoOptions())
            continue
        with pytest.raises(AssertionError, match=r"'wrong' does not learn the lab's world of two turns: .* sign"):
            check_learns(spec, NoOptions())
    with pytest.raises(AssertionError, match="do not fill the column 'judge'"):
        check_learns(HOST.spec("estimator", "mae"), None)


def test_names_that_are_wrong_are_said():
    with pytest.raises(HierError, match="the shape must be one of chains, plans, tree, "):
        method("grpo@nothing", HOST)
    with pytest.raises(HierError, match="schedule"):
        method("grpo+nothing", HOST)
    with pytest.raises(HierError, match="fills the column 'judge'"):
        method("mae", HOST)
