"""More episodes than needed, of whose successes the cleanest are kept."""

from __future__ import annotations

import random

import pytest

from tests.fixtures.sampler_cases import check_budgets, check_repeatable, roll, spec
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier_plugins.samplers.grpo_roc import GRPORoC, GRPORoCOptions, error_share, format_penalty, kept


def make(**options):
    return lambda: GRPORoC(GRPORoCOptions(**options))


class Tool:
    """Two calls of a tool that may fail, then an answer that may be right."""

    def reset(self, task, seed):
        self.turn = 0
        return StepResult("go")

    def step(self, action):
        self.turn += 1
        done = self.turn == 3
        return StepResult(
            "Error: no" if action == "break" else "fine", reward=float(done and action == "right"), done=done
        )

    def fork(self):
        return None

    def close(self):
        pass


def draw(prompt, sampling):
    return random.Random(sampling.seed).choice(["break", "call", "right", "right"])


def test_penalties():
    assert error_share([]) == 0.5 and error_share(["Error: x", "ok"]) == 0.5 and error_share(["ok"]) == 0
    assert format_penalty("no tags", 3) == 1 and format_penalty("<answer>1</answer><answer>", 3) == 1
    assert format_penalty("<answer>1</answer>", 3) == 0
    assert format_penalty("<answer>1</answer>" * 2, 4) == 0.25 and format_penalty("<answer>1</answer>" * 9, 4) == 1


def by_hand(returns, penalties, number, min_positive, min_zero):
    """The positions that are kept, one by one."""
    zero = [i for i, r in enumerate(returns) if r <= 0]
    positive = [i for i, r in enumerate(returns) if r > 0]
    wanted = round(len(zero) * number / len(returns))
    if wanted <= min(min_zero, len(zero)):
        wanted = min(min_zero, len(zero))
    if round(len(positive) * number / len(returns)) <= min(min_positive, len(positive)):
        wanted = number - min(min_positive, len(positive))
    best = []
    while len(best) < number - wanted:
        best.append(min((i for i in positive if i not in best), key=lambda i: (penalties[i], i)))
    return sorted(best + zero[:wanted])


@pytest.mark.parametrize("seed", range(40))
def test_both_kinds_are_kept_in_proportion(seed):
    rng = random.Random(seed)
    returns = [float(rng.random() < 0.4) for _ in range(16)]
    penalties = [rng.choice([0.0, 0.5, 1.0]) for _ in returns]
    found = kept(returns, penalties, 8, 2, 2)
    assert len(found) == 8 and found == by_hand(returns, penalties, 8, 2, 2)


def test_few_episodes_all_stay():
    assert kept([1.0, 0.0], [0.0, 0.0], 4, 2, 2) == [0, 1]


def test_of_the_successes_the_cleanest_stay():
    graph = roll(make(draw=3.0, format=False)(), answer=draw, n=4, seed=1, environment=Tool)
    assert not graph.short and len(graph.episodes) == 12 and graph.counts["not_kept"] == 8
    won = [e for e in graph.episodes if e.ret > 0]
    stay = [e.decision["penalty"] for e in won if e.status == "finished"]
    gone = [e.decision["penalty"] for e in won if e.status == "pruned"]
    assert stay and gone and max(stay) <= min(gone)
    first = graph.path(won[0].id)[:2]
    failed = sum(graph.nodes[node].text == "break" for node in first) / 2
    assert won[0].decision["penalty"] == failed


def test_tasks_without_a_difference_may_be_left_out():
    always = {"answer": lambda prompt, sampling: "right", "n": 4, "environment": Tool}
    graph = roll(make(drop_equal=True)(), **always)
    assert not list(graph.complete()) and graph.counts["equal_returns"] == 8
    assert len(list(roll(make()(), **always).complete())) == 4


def test_the_same_seed_keeps_the_same_and_budgets_hold():
    check_repeatable(make(), n=4)
    check_budgets(make(), n=4)


def test_n_has_room_for_both_kinds():
    registered = spec("grpo_roc")
    assert registered.episodes(GRPORoCOptions(), 16) == 16
    with pytest.raises(RecipeError, match=r"min_positive \+ min_zero = 4"):
        registered.episodes(GRPORoCOptions(), 3)
    with pytest.raises(RecipeError, match="draw: must be at least 1"):
        build_options(registered, {"draw": 0.5})
