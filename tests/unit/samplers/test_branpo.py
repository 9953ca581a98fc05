"""Episodes whose last turns are played again until they end better or worse."""

from __future__ import annotations

import random

import pytest

from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.testing import credit_of
from verl_hier_plugins.samplers.branpo import (
    BranPOSampler,
    BranPOSamplerOptions,
    Ending,
    Round,
    preference,
    rounds,
)

OPTIONS = BranPOSamplerOptions()
GOOD, BAD = Ending(1.0, 4), Ending(0.0, 4)


def make():
    return BranPOSampler(OPTIONS)


class Coin:
    """Three turns; heads in the last one wins."""

    def reset(self, task, seed):
        self.left = 3
        return StepResult("toss")

    def step(self, action):
        self.left -= 1
        return StepResult("toss", reward=float(not self.left and action == "heads"), done=not self.left)

    def fork(self):
        return None

    def close(self):
        pass


def toss(prompt, sampling):
    return "heads" if random.Random(sampling.seed).random() < 0.5 else "tails"


@pytest.mark.parametrize(
    ("ending", "others", "expected"),
    [
        (GOOD, [GOOD] * 3, [Round(1, 1)]),
        (Ending(1.0, 5), [GOOD, GOOD, BAD], [Round(2, 5)]),
        (GOOD, [GOOD, GOOD, BAD], [Round(1, 2), Round(2, 2)]),
        (GOOD, [GOOD, GOOD, GOOD, GOOD, BAD], [Round(2, 0)]),
        (BAD, [BAD, BAD, GOOD], [Round(1, 2), Round(2, 2), Round(3, 2)]),
        (Ending(0.0, 2), [BAD, BAD], [Round(1, 2), Round(2, 2), Round(2, 2)]),
        (GOOD, [BAD, BAD], [Round(1, 2), Round(2, 2)]),
        (BAD, [GOOD], [Round(1, 2), Round(2, 2)]),
        (Ending(0.0, 4, True), [BAD], [Round(2, 0)]),
        (Ending(0.0, 1, True), [BAD], [Round(1, 0)]),
    ],
)
def test_which_tails_are_played_again(ending, others, expected):
    assert rounds(ending, [ending, *others], OPTIONS) == expected


def test_an_ending_is_preferred_for_its_return_then_for_its_length():
    assert preference(BAD, Ending(1.0, 1), 2, 0.2, OPTIONS) == 1
    assert preference(GOOD, Ending(0.0, 1), 2, 0.2, OPTIONS) == -1
    assert preference(GOOD, Ending(0.0, 1, True), 2, 0.2, OPTIONS) == 0
    assert [preference(GOOD, Ending(1.0, n), 2, 0.75, OPTIONS) for n in (1, 2, 3)] == [1, 0, -1]
    assert preference(GOOD, Ending(1.0, 1), 2, 1.0, OPTIONS) == 0
    assert preference(BAD, Ending(0.0, 1), 2, 0.75, OPTIONS) == 0


def test_second_endings_are_kept_and_marked():
    seen = set()
    for seed in range(8):
        graph = roll(make(), answer=toss, n=4, seed=seed, environment=Coin)
        base = [e for e in graph.complete() if e.source < 0]
        second = {e.source: e for e in graph.complete() if e.source >= 0}
        assert len(base) == 4 and graph.counts.get("second_endings", 0) == len(second)
        for episode in base:
            other = second.get(episode.id)
            nodes = [graph.nodes[number] for number in graph.path(episode.id)]
            marks = [(node.extra["suffix"], node.extra["preference"]) for node in nodes]
            if other is None:
                assert {sign for _, sign in marks} == {0} and [s for s, _ in marks].count(1) in (1, 2, 3)
                continue
            sign = 1 if other.ret > episode.ret else -1
            own = [graph.nodes[number].extra for number in graph.path(other.id)[other.shared :]]
            assert other.ret != episode.ret and [m["preference"] for m in own] == [sign] * (3 - other.shared)
            assert marks == [(0, 0)] * other.shared + [(1, -sign)] * (3 - other.shared)
            seen.add(sign)
    assert seen == {1, -1}


def test_credit_of_a_task_by_hand():
    graph = roll(make(), answer=toss, n=4, seed=0, environment=Coin)
    table = build_table([graph])
    credit = credit_of("branpo", table, scale="none")
    returns = {e.id: [e.ret] for e in graph.complete() if e.source < 0}
    for e in graph.complete():
        if e.source >= 0:
            returns[e.source].append(e.ret)
    whole = [sum(values) / len(values) for values in returns.values()]
    endings = [value for values in returns.values() for value in values]
    for turn in range(len(table)):
        if table["suffix"][turn]:
            expected = table["return"][turn] - sum(endings) / len(endings)
            expected = 0.0 if table["preference"][turn] < 0 < expected else expected
        else:
            expected = table["return"][turn] - sum(whole) / len(whole)
        assert credit[turn] == pytest.approx(expected)


def test_an_attempt_that_is_cut_says_nothing():
    graph = roll(make(), answer=lambda prompt, sampling: "left", n=2, limits=Limits(max_turns=3))
    # Episodes that use up their turns are tried again, their attempts are cut too and given up.
    assert graph.counts["forks"] == 12 and len(list(graph.complete())) == 2


def test_the_same_seed_makes_the_same_endings_and_budgets_hold():
    check_repeatable(make, n=4)
    check_budgets(make, n=4)


def test_a_broken_world_costs_its_own_attempt():
    for seed in range(6):
        graph = roll(make(), answer=wander, n=4, seed=seed, environment=lambda: Trap(4))
        assert all("suffix" in graph.nodes[n].extra for e in graph.complete() for n in graph.path(e.id))


def test_it_compares_episodes():
    registered = spec("branpo")
    assert registered.episodes(OPTIONS, 4) == 4 and registered.provides == ("suffix", "preference")
    with pytest.raises(RecipeError, match="n >= 2"):
        registered.episodes(OPTIONS, 1)
    with pytest.raises(RecipeError, match="good must be positive"):
        build_options(registered, {"good": 0.0})
