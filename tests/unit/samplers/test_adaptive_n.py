"""Episodes as long as a task is uncertain or hard: the arithmetic, the rounds, and what a short group is then."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from statistics import NormalDist

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, walk, wander
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.rollout.budget import BudgetOptions
from verl_hier_plugins.samplers.adaptive_n import (
    AdaptiveN,
    AdaptiveNOptions,
    half_width,
    rebalanced,
    student_quantile,
    uncertainty,
)

PAGE = Path(__file__).parents[3] / "docs" / "methods" / "adaptive_n.md"


def make(**options):
    return lambda: AdaptiveN(AdaptiveNOptions(**options))


@pytest.mark.parametrize(
    "p, freedom, quantile",
    [  # as printed in tables of Student's distribution
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.95, 5, 2.015),
        (0.995, 4, 4.604),
        (0.9995, 7, 5.408),
        (0.5, 6, 0.0),
    ],
)
def test_quantiles_of_student(p, freedom, quantile):
    assert student_quantile(p, freedom) == pytest.approx(quantile, abs=5e-4)


def test_many_degrees_of_freedom_are_normal():
    assert student_quantile(0.9, 2000) == pytest.approx(NormalDist().inv_cdf(0.9), abs=1e-3)


def test_the_priority_is_the_expected_gain_and_a_bonus():
    # Two of four won: s = sqrt(1/3), t(.975, 3) = 3.1824 and t(.975, 4) = 2.7764.
    spread = math.sqrt(1 / 3)
    gain = 3.18245 * spread / 2 - 2.77645 * spread / math.sqrt(5)
    assert uncertainty([1, 0, 1, 0], 0.95, 0.0) == pytest.approx(gain, abs=1e-4)
    assert half_width(spread, 4, 0.95) == pytest.approx(0.9187, abs=1e-4)
    bonus = 0.3 * math.sqrt(math.log(5) / 4)
    assert uncertainty([1, 0, 1, 0], 0.95, 0.3) == pytest.approx(gain + bonus, abs=1e-4)
    assert uncertainty([0.4] * 4, 0.95, 0.3) == pytest.approx(bonus)
    assert uncertainty([1.0], 0.95, 0.3) == math.inf


def test_more_episodes_are_worth_less():
    worths = [uncertainty([1, 0] * half, 0.95, 0.05) for half in range(1, 12)]
    assert worths == sorted(worths, reverse=True)


@pytest.mark.parametrize(
    "n, equal, quarter, half",
    [(4, 0.032, 0.206, 0.234), (8, 0.026, 0.057, 0.062), (12, 0.023, 0.037, 0.039), (16, 0.021, 0.029, 0.031)],
)
def test_the_priorities_on_the_page(n, equal, quarter, half):
    options = AdaptiveNOptions()
    for won, told in ((0, equal), (n, equal), (n // 4, quarter), (n // 2, half)):
        returns = [1.0] * won + [0.0] * (n - won)
        assert uncertainty(returns, options.confidence, options.exploration) == pytest.approx(told, abs=5e-4)
    assert f"| {n} | {equal:.3f} | {quarter:.3f} | {half:.3f} |" in PAGE.read_text("utf-8")


def test_hard_tasks_get_the_say_of_even_ones():
    assert rebalanced([1, 0, 0, 0], 4) == pytest.approx(4 / (2 * math.sqrt(3 / 16)))
    assert rebalanced([1, 1, 1, 0], 4) == rebalanced([1, 0], 4) == 4
    assert rebalanced([0, 0, 0], 4) == rebalanced([], 4) == math.inf


class Verdict(Corridor):
    """Won by whoever goes right first."""

    def step(self, action):
        won = action == "right"
        return dataclasses.replace(super().step(action), reward=float(won), done=True, info={"won": won})


def straight(prompt, sampling):
    return "right"


def rounds_of(graph):
    return [e.decision["round"] for e in graph.episodes]


def test_a_task_whose_returns_are_equal_stops_at_the_start():
    graph = roll(make()(), n=12, answer=straight)
    assert rounds_of(graph) == [0] * 4 and not graph.short and graph.counts["episodes_saved"] == 8


def test_a_task_whose_returns_differ_gets_more_until_its_mean_is_known():
    graph = roll(make(threshold=0.06)(), n=24, seed=2, environment=Verdict)
    returns = [e.ret for e in graph.episodes]
    assert 4 < len(returns) < 24 and not graph.short
    for start in range(4, len(returns) + 1, 2):
        worth = uncertainty(returns[:start], 0.95, 0.05)
        assert (worth >= 0.06) == (start < len(returns))
        if start < len(returns):
            assert graph.episodes[start].decision == {"round": start // 2 - 1, "worth": worth, "complete": start}
    assert graph.counts["episodes_saved"] == 24 - len(returns)


def test_exploration_goes_on_with_equal_returns():
    graph = roll(make(exploration=1.0)(), n=9, answer=straight)
    assert rounds_of(graph) == [0] * 4 + [1, 1, 2, 2, 3] and not graph.short


def wins(*won):
    left = [*won]
    return lambda prompt, sampling: "right" if left.pop(0) else "left"


@pytest.mark.parametrize(
    "won, rounds",
    [
        ([1, 1, 0, 0], [0] * 4),
        ([1, 1, 1, 1], [0] * 4),
        # One of four: 4 / (2 sqrt(3/16)) = 4.6, so one more; it is won, two of five: 4.08, which is five.
        ([1, 0, 0, 0, 1], [0] * 4 + [1]),
        # It is lost, one of five: 4 / (2 sqrt(4/25)) = 5; enough.
        ([1, 0, 0, 0, 0], [0] * 4 + [1]),
        # Never won: as many as there may be.
        ([0] * 9, [0] * 4 + [1, 1, 1, 2, 2]),
    ],
)
def test_the_rule_of_difficulty(won, rounds):
    graph = roll(make(rule="difficulty", step=3)(), n=9, answer=wins(*won), environment=Verdict)
    assert rounds_of(graph) == rounds and not graph.short


def test_lost_episodes_make_the_group_short_and_are_not_replaced():
    graphs = [roll(make(start=2, step=1)(), answer=wander, n=6, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert lost
    for graph in lost:
        assert graph.short and len(graph.episodes) <= 6


def test_nothing_is_known_of_a_task_that_lost_its_first_episodes():
    answers = iter(["jump", "jump", *["right"] * 99])
    graph = roll(make(start=2, step=2)(), answer=lambda *_: next(answers), n=6, environment=lambda: Trap(4))
    assert [e.decision.get("worth", 0) for e in graph.episodes] == [0, 0, None, None]
    assert [e.status for e in graph.episodes] == ["failed"] * 2 + ["finished"] * 2 and graph.short


@pytest.mark.parametrize("rule", ["uncertainty", "difficulty"])
def test_the_same_seed_makes_the_same_tree(rule):
    check_repeatable(make(rule=rule, start=2, step=1), n=6)


def test_budgets():
    check_budgets(make(start=2, step=1, exploration=1.0), n=5)
    graph = roll(make(start=2, step=2, exploration=1.0)(), n=6, budget=BudgetOptions(leaves=3), answer=walk)
    assert len(graph.episodes) == 3 and graph.short and graph.counts["budget_skipped"] == 1


def test_what_cannot_work_is_refused():
    registered = spec("adaptive_n")
    assert registered.episodes(build_options(registered, {}), 5) == 5
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n must be at least 5; got 4"):
        registered.episodes(build_options(registered, {}), 4)
    refusals = {
        "start must be at least 2, got 1": {"start": 1},
        "step: must be at least 1, got 0": {"step": 0},
        r"confidence must be within \(0, 1\), got 1.0": {"confidence": 1},
        "threshold: must be at least 0": {"threshold": -1},
    }
    for told, options in refusals.items():
        with pytest.raises(RecipeError, match=told):
            build_options(registered, options)
