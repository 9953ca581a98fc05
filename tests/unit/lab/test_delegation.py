"""Credit for delegation against the exact gradient, in worlds whose lead decides how many helpers there are."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from verl_hier.graph import EpisodeRecord, Node, RolloutGraph
from verl_hier.graph.build_table import build_table
from verl_hier.lab.bias import start
from verl_hier.lab.delegation import DELEGATED, MOST, PRACTICES, WORK, gradient_of, pull, towards, way
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import CHAINS, method
from verl_hier.lab.rollouts import play
from verl_hier.lab.update import Loss, advantages
from verl_hier.testing.builtin import full_credit
from verl_hier_plugins.estimators.sub_agents import Practice

USEFUL = DELEGATED["useful"]
BATCHES = 200
"""Enough for every bias that a test asks for; the figures of the documents have 1000."""


def played(world, tasks=200):
    return play(world, world.policy(start(world)), tasks, CHAINS, np.random.default_rng(0))


def test_every_practice_is_measured():
    assert {options.get("practice", "by_role") for options in PRACTICES.values()} == set(get_args(Practice))


@pytest.mark.parametrize("name", DELEGATED)
def test_the_best_policy_asks_until_something_is_found(name):
    """Whoever works rightly finds something nine times of ten, and three may try."""
    best = {"useful": 0.9 * 0.999 + 0.5 * 0.001, "needed": 0.9 * 0.999 + 0.1 * 0.001, "useless": 0.6}
    best |= {"paid": best["useful"] + 0.2 * 0.9 * (1 + 0.1 + 0.01), "shortened": best["useful"]}
    assert DELEGATED[name].best == pytest.approx(best[name])


@pytest.mark.parametrize("name", DELEGATED)
def test_spawns_are_conversations_of_further_agents(name):
    world = DELEGATED[name]
    policy = world.policy(start(world))
    table = played(world).table
    helpers = [len({*table["agent"][table["episode"] == episode]}) - 1 for episode in range(1600)]
    assert {*helpers} == set(range(MOST + 1))
    spread = np.std(helpers) / np.sqrt(len(helpers))
    assert np.mean(helpers) == pytest.approx(world.counting.expected_return(policy), abs=4 * spread)
    turns = table.episodes["turns"] - np.array(helpers) * (WORK + 1)
    assert {*turns.tolist()} == {2}, "each helper takes a turn of its lead and its own, and an answer takes two"


def as_a_worker_fills_it(world, batch, episode):
    """The graph of an episode: a context for each agent, and for each that it begins anew."""
    graph, last = RolloutGraph(task={"uid": "u"}), {}
    mine = np.flatnonzero(batch.table["episode"] == episode)
    for turn, (state, place) in enumerate(zip(batch.state[mine], mine, strict=True)):
        context = int(world.context[state])
        graph.nodes.append(
            Node(
                id=turn, parent=turn - 1, context=last.get(context, -1), episode=0, turn=turn, segment=0, plan=-1,
                agent=world.agents[world.agent[state]], role=world.roles[world.role[state]],
                level=int(world.level[state]),
                observation=[1], action=[2], logprobs=[-1.0], reward=float(batch.table["reward"][place]),
                done=bool(batch.table["done"][place]),
            )
        )  # fmt: skip
        last[context] = turn
    value = float(batch.table.episodes["return"][episode])
    graph.episodes.append(EpisodeRecord(0, tree=0, leaf=len(graph.nodes) - 1, status="finished", ret=value))
    graph.check()
    return graph


@pytest.mark.parametrize("name", ["useful", "shortened"])
def test_agents_and_rows_are_those_of_a_rollout(name):
    world = DELEGATED[name]
    batch = played(world, tasks=10)
    for episode in range(20):
        mine = batch.table["episode"] == episode
        theirs = build_table([as_a_worker_fills_it(world, batch, episode)])
        for column in ("role", "agent"):
            said = [[table.names[column][code] for code in table[column]] for table in (batch.table, theirs)]
            assert np.array(said[0])[mine].tolist() == said[1]
        rows = [np.unique(column, return_inverse=True)[1] for column in (batch.table["row"][mine], theirs["row"])]
        assert rows[0].tolist() == rows[1].tolist()
        assert batch.table["level"][mine].tolist() == theirs["level"].tolist()
        helpers = len({*theirs["agent"]}) - 1
        assert len({*theirs["row"]}) == 1 + helpers * (2 if name == "shortened" else 1)


def test_a_row_of_the_loss_weighs_the_same_however_long():
    table = played(DELEGATED["shortened"], tasks=4).table
    credit = full_credit("sub_agents", table)
    credit.values[:] = 1.0
    weights = advantages(table, credit, "row")
    rows = np.bincount(table["row"], weights)
    assert rows == pytest.approx(np.full(len(rows), 1 / len(rows)))


def measured(world, practice, weight_by="token"):
    return gradient_of(world, way(world, practice, weight_by), BATCHES)


@pytest.mark.parametrize("practice", ["by_role", "inherit"])
def test_the_return_of_the_episode_is_unbiased_where_turns_weigh_the_same(practice):
    found, (towards_spawns, half) = measured(USEFUL, practice)
    assert found.unbiased and found.interval[1] < 0.25
    assert towards_spawns == pytest.approx(pull(USEFUL, start(USEFUL)), abs=1.5 * half)


def test_reward_by_conversations_is_an_argument_against_spawning():
    """The exact gradient spawns more, and in `useless` it does not care."""
    assert pull(USEFUL, start(USEFUL)) > 0.1
    for name, least in (("useful", 0.7), ("useless", 0.5)):
        world = DELEGATED[name]
        found, (towards_spawns, half) = measured(world, "split")
        assert found.interval[0] > least
        assert towards_spawns + half < pull(world, start(world)) - 0.3


def test_longest_and_weights_of_episodes_are_biased():
    for practice, weight_by in (("longest", "token"), ("by_role", "episode")):
        found, _ = measured(USEFUL, practice, weight_by)
        assert found.interval[0] > 0.2, practice


def test_own_by_rows_is_an_argument_against_spawning_and_by_agents_is_none():
    world = DELEGATED["shortened"]
    for by, least, most in (("row", -1.0, -0.3), ("agent", 0.0, 0.5)):
        made = method("sub_agents", options={"practice": "own", "conversation": by})
        _, (towards_spawns, half) = gradient_of(world, replace(made, loss=Loss(weight_by="token")), BATCHES)
        assert least < towards_spawns - half < towards_spawns + half < most, by


def test_towards_is_a_cosine():
    rng = np.random.default_rng(0)
    mean, direction = np.array([3.0, 4.0]), np.array([2.0, 0.0])
    cosine, half = towards(mean + rng.normal(scale=0.1, size=(400, 2)), direction)
    assert cosine == pytest.approx(0.6, abs=half) and half == pytest.approx(1.96 * 0.1 / 20 / 5, rel=0.1)


def test_split_learns_to_work_alone_where_a_helper_would_be_useful():
    setting = Setting(turns=12000, rate=0.1)
    alone, asks = (learn(USEFUL, way(USEFUL, practice, "episode"), 0, setting) for practice in ("split", "by_role"))
    assert alone.spawned[-1] < 0.05 and alone.solved[-1] == pytest.approx(0.5, abs=0.02)
    assert asks.spawned[-1] > 0.9 and asks.solved[-1] > 0.7
    assert learn(USEFUL, way(USEFUL, "by_role", "episode"), 0, Setting(turns=500)).spawned[0] == pytest.approx(13 / 27)
