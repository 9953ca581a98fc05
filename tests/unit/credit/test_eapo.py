"""EAPO: the paper's discount in closed form, a slow twin, and the worlds in which it makes episodes shorter."""

from __future__ import annotations

import numpy as np
import pytest

from verl_hier.testing import credit_of, make_table
from verl_hier.testing.estimator import random_table


def test_a_round_has_the_outcome_discounted_by_the_rounds_that_follow() -> None:
    """Two episodes of one task, won in three rounds and lost in two, at gamma 1/2: 1/4, 1/2, 1 against 0, 0."""
    table = make_table({"episode": [0, 0, 0, 1, 1], "reward": [0.0, 0.0, 1.0, 0.0, 0.0]})
    scores = np.array([0.25, 0.5, 1.0, 0.0, 0.0])
    wanted = (scores - 0.35) / scores.std(ddof=1)
    assert credit_of("eapo", table, gamma=0.5, eps=0.0) == pytest.approx(wanted)
    assert credit_of("eapo", table, gamma=0.5, scale="none") == pytest.approx(scores - 0.35)


def test_of_two_wins_the_shorter_one_is_worth_more() -> None:
    table = make_table({"episode": [0, 0, 1, 1, 1, 1], "reward": [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]})
    found = credit_of("eapo", table, gamma=0.9)
    assert found[0] > found[2] and found[1] == found[5] > 0
    assert credit_of("eapo", table, gamma=1.0) == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tree", [False, True])
def test_the_slow_twin(seed: int, tree: bool) -> None:
    table, gamma = random_table(seed, tree=tree), 0.8
    episodes = [int(episode) for episode in np.unique(table.step_episode)]
    worths: dict[int, list[float]] = {}
    for episode in episodes:
        turns = [int(turn) for turn in table.step_turn[table.step_episode == episode]]
        for place, turn in enumerate(turns):
            if table["episodes.trained"][episode]:
                worth = float(table["episodes.return"][episode]) * gamma ** (len(turns) - 1 - place)
                worths.setdefault(turn, []).append(worth)
    scores = {turn: float(np.mean(found)) for turn, found in worths.items() if table["trained"][turn]}
    found = credit_of("eapo", table, gamma=gamma, scale="none")
    for turn in range(len(table)):
        peers = [score for other, score in scores.items() if table["group"][other] == table["group"][turn]]
        alone = len(peers) == 1
        wanted = 0.0 if turn not in scores else scores[turn] - (0.0 if alone else float(np.mean(peers)))
        assert found[turn] == pytest.approx(wanted)
