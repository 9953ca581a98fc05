"""Normalisation by turn index when the policy decides when to stop: the closed form of docs/guards.md.

In every turn the policy goes on with probability q and stops otherwise. Going on earns m, stopping earns s. From any
turn on the value is V = s + q m / (1 - q). The true preference for going on is Q(go) - Q(stop) = m + V - s; centred by
turn index it becomes m - s, short of it by V. The tables below hold every episode as often as its probability says, so
means over them are expectations, but for episodes longer than the horizon.
"""

import numpy as np
import pytest

from verl_hier.testing import credit_of, make_table

HORIZON = 40
CASES = [(0.5, 1.0, 0.0), (0.5, 0.0, 1.0), (0.5, -0.25, 0.0), (0.75, 0.5, 0.75), (0.25, -1.0, 2.0)]


def value(q, m, s):
    return s + q * m / (1 - q)


def episodes(q, horizon=HORIZON):
    """Number of times that the policy went on, and the probability of it."""
    return np.arange(horizon), (1 - q) * q ** np.arange(horizon)


def preference(credit, q, m, s):
    """What turn 0 learns: mean credit of going on less mean credit of stopping.

    `credit(went, rewards)` is (episodes, turns) from the number of times each went on and its rewards.
    """
    went, chance = episodes(q)
    turns = np.arange(HORIZON)
    rewards = np.where(turns < went[:, None], m, np.where(turns == went[:, None], s, 0.0))
    first = credit(went, chance, rewards)[:, 0]
    go = went > 0
    return first[go] @ chance[go] / chance[go].sum() - first[~go] @ chance[~go] / chance[~go].sum()


def by_episode(went, chance, rewards):
    """Return less the mean return, for every turn."""
    returns = rewards.sum(1)
    return np.repeat((returns - returns @ chance / chance.sum())[:, None], HORIZON, 1)


def by_turn_index(went, chance, rewards):
    """Rewards less the mean of their turn index among the episodes that have it, then summed to the end."""
    has = np.arange(HORIZON) <= went[:, None]
    weight = has * chance[:, None]
    centred = np.where(has, rewards - (rewards * weight).sum(0) / weight.sum(0), 0.0)
    return np.cumsum(centred[:, ::-1], 1)[:, ::-1]


@pytest.mark.parametrize("q, m, s", CASES)
def test_closed_form(q, m, s):
    v = value(q, m, s)
    assert preference(by_episode, q, m, s) == pytest.approx(m + v - s, abs=1e-3)
    assert preference(by_turn_index, q, m, s) == pytest.approx(m - s, abs=1e-3)


def test_the_sign_can_turn():
    """Half a point a turn against a point once: staying is right, the turn index says stop."""
    assert preference(by_episode, 0.5, 0.5, 1.0) > 0.9
    assert preference(by_turn_index, 0.5, 0.5, 1.0) < -0.4


def test_nothing_is_lost_when_nobody_decides_to_stop():
    """Two actions, fixed length: both ways prefer the better action by the same amount."""
    rewards = np.array([[1.0, 0.5], [1.0, 0.0], [0.0, 0.5], [0.0, 0.0]])
    returns = rewards.sum(1) - rewards.sum(1).mean()
    centred = (rewards - rewards.mean(0)).sum(1)
    assert returns[:2].mean() - returns[2:].mean() == centred[:2].mean() - centred[2:].mean() == 1.0


def sampled(q, m, s, copies=256, longest=8):
    """A turn table that holds each episode as often as its probability says; q is a half."""
    turns = {"episode": [], "turn": [], "reward": []}
    number = 0
    for went in range(longest):
        for _ in range(int(copies * (1 - q) * q**went)):
            rewards = [m] * went + [s]
            turns["episode"] += [number] * len(rewards)
            turns["turn"] += range(len(rewards))
            turns["reward"] += rewards
            number += 1
    return make_table(turns)


@pytest.mark.parametrize("m, s", [(1.0, 0.0), (0.5, 1.0), (-0.25, 0.0)])
def test_estimators_show_it(m, s):
    """`grpo` compares episodes; `at_grpo` compares the rewards of one turn index and inherits the bias."""
    table = sampled(0.5, m, s)
    first = np.asarray(table["turn"]) == 0
    go = first & (np.asarray(table["episodes.turns"])[table["episode"]] > 1)
    expected = {"grpo": m + value(0.5, m, s) - s, "at_grpo": m - s}
    for name, preferred in expected.items():
        credit = credit_of(name, table, scale="none")
        assert credit[go].mean() - credit[first & ~go].mean() == pytest.approx(preferred, abs=0.06), name


def test_scaling_by_turn_index_keeps_the_sign_and_changes_the_size():
    """Returns compared among the episodes that reached a turn are centred right; the scale differs by turn."""
    table = sampled(0.5, 1.0, 0.0)
    plain = credit_of("grpo", table, score="return", group_by=("group", "turn"), weight_by="turn", scale="none")
    scaled = credit_of("grpo", table, score="return", group_by=("group", "turn"), weight_by="turn")
    turn = np.asarray(table["turn"])
    length = np.asarray(table["episodes.turns"])[table["episode"]]
    for index in (0, 1, 2):
        here = turn == index
        go = here & (length > index + 1)
        raw = plain[go].mean() - plain[here & ~go].mean()
        assert raw == pytest.approx(2.0, abs=0.3)
        assert scaled[go].mean() > 0 > scaled[here & ~go].mean()
    factors = [(scaled[turn == i] / np.where(plain[turn == i], plain[turn == i], 1)).max() for i in (0, 5)]
    assert factors[0] != pytest.approx(factors[1], rel=0.05)
