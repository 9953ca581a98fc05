"""Best of n candidates at every turn: who is compared, who goes on, what the others are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Worker
from verl_hier.testing import credit_of
from verl_hier_plugins.samplers.best_of_turn import BestOfTurn, BestOfTurnOptions


class Bids(Environment):
    """An action is a number of tenths, which is its reward; three actions end it."""

    def __init__(self, turns: int = 3) -> None:
        self._turns = turns

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._said: list[int] = []
        return self._answer(0.0)

    def step(self, action: str) -> StepResult:
        self._said.append(int(action))
        return self._answer(int(action) / 10)

    def _answer(self, reward: float) -> StepResult:
        text = "said " + " ".join(map(str, self._said))
        done = len(self._said) >= self._turns
        return StepResult(text, reward, done, info={"won": done, "highest": max(self._said, default=0), "name": "bids"})


class Pair(Worker):
    """A solver speaks, a checker speaks, then the solver's word is acted on; odd words cost the solver half a point."""

    async def run(self, episode):
        step = await episode.reset()
        while not step.done:
            solver = episode.context("solver").observe(step.text)
            turn = await episode.generate(solver)
            if int(turn.text) % 2:
                turn.reward(-0.5)
            await episode.generate(episode.context("checker").observe(f"check {turn.text}"))
            step = await episode.act(turn.text)


def make(**options):
    return lambda: BestOfTurn(BestOfTurnOptions(**options))


def in_order(*words):
    """Says the words in the order of the requests, then sevens."""
    left = list(words)
    return lambda prompt, sampling: str(left.pop(0)) if left else "7"


def test_the_first_best_goes_on_and_all_candidates_are_credited():
    graph = roll(make()(), n=4, environment=lambda: Bids(2), answer=in_order(5, 8, 3, 8))
    first, second = ([node for node in graph.nodes if node.turn == turn] for turn in (0, 1))
    assert sorted((node.text, node.reward) for node in first) == [("3", 0.3), ("5", 0.5), ("8", 0.8), ("8", 0.8)]
    chosen = graph.nodes[graph.path(1)[0]]
    assert chosen.text == "8" and chosen.decision["candidate"] == 1
    assert {node.parent for node in second} == {chosen.id} and len(second) == 4
    assert not graph.short and sum(1 for _ in graph.complete()) == 7
    table = build_table([graph])
    credit = credit_of("at_grpo", table, score="candidate_reward")
    by_episode = {int(e): c for e, c, t in zip(table["episode"], credit, table["turn"], strict=True) if t == 0}
    assert [by_episode[e] for e in range(4)] == pytest.approx([-0.4082, 0.8165, -1.2247, 0.8165], abs=1e-4)


def test_candidates_that_were_not_chosen_are_leaves_that_neither_won_nor_lost():
    graph = roll(make()(), n=2, environment=lambda: Bids(2), answer=in_order(9, 1, 2, 6))
    ends = [(e.status, e.error, e.success) for e in graph.episodes]
    assert ends == [("finished", None, True), ("truncated", "not_chosen", None), ("finished", None, True)]
    assert [e.ret for e in graph.episodes] == pytest.approx([1.1, 0.1, 1.5])


def test_without_greedy_choice_the_first_goes_on():
    graph = roll(make(greedy_choice=False)(), n=3, environment=lambda: Bids(2), answer=in_order(1, 9, 9))
    assert {graph.nodes[node.parent].text for node in graph.nodes if node.turn == 1} == {"1"}


def test_every_agent_has_its_own_candidates_and_local_rewards_count():
    graph = roll(make()(), n=2, environment=lambda: Bids(1), worker=Pair, answer=in_order(9, 2, 0, 0))
    solver, checker = ([n for n in graph.nodes if n.role == role] for role in ("solver", "checker"))
    assert [(n.text, n.extra["candidate_reward"]) for n in solver] == [("9", -0.5), ("2", 0.0)]
    assert [(n.parent, n.reward) for n in checker] == [(solver[1].id, 0.2)] * 2
    table = build_table([graph])
    assert [len(set(table["agent"][table["turn"] == turn])) for turn in (0, 1)] == [1, 1]


def test_alpha_weighs_the_world_against_the_worker():
    class Judged(Worker):
        async def run(self, episode):
            step = await episode.reset()
            turn = await episode.generate(episode.context("agent").observe(step.text))
            await episode.act(turn.text)
            turn.reward(0.9 - int(turn.text) / 10)

    for alpha, best in ((2.0, "9"), (0.5, "1")):
        graph = roll(make(alpha=alpha)(), n=2, environment=lambda: Bids(1), worker=Judged, answer=in_order(1, 9))
        rewards = {node.text: node.extra["candidate_reward"] for node in graph.nodes}
        assert rewards == pytest.approx({"1": alpha * 0.1 + 0.8, "9": alpha * 0.9})
        assert max(rewards, key=rewards.__getitem__) == best


def test_progress_counts_as_the_worlds_reward():
    graph = roll(make(progress="highest")(), n=2, environment=lambda: Bids(2), answer=in_order(6, 4, 5, 8))
    rewards = {node.text: node.extra["candidate_reward"] for node in graph.nodes}
    assert rewards == pytest.approx({"6": 6.6, "4": 4.4, "5": 0.5, "8": 2.8})
    for name in ("points", "name"):
        with pytest.raises(RecipeError, match=rf"hier.sampler.progress: .* no number '{name}'; it has highest, won"):
            roll(make(progress=name)(), n=2, environment=lambda: Bids(2), answer=in_order(6))


def test_a_limit_makes_no_copies():
    graph = roll(make()(), n=3, environment=lambda: Bids(9), answer=in_order(), limits=Limits(max_turns=2))
    assert [e.status for e in graph.complete()] == ["truncated"] * 5 and not graph.short
    assert graph.counts["idle_forks"] == 2 and len(graph.nodes) == 6


def test_a_broken_world_costs_its_own_candidate():
    graphs = [roll(make()(), answer=wander, n=4, seed=s, environment=lambda: Trap(3)) for s in range(10)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert len(lost) > 5 and all(graph.short for graph in lost)
    assert all(any(e.status == "finished" for e in graph.episodes) for graph in graphs)


def test_the_line_ends_when_no_candidate_is_left():
    graph = roll(make()(), answer=lambda prompt, sampling: "jump", n=3, environment=lambda: Trap(3))
    assert [e.status for e in graph.episodes] == ["failed"] * 3 and graph.short


def test_the_same_seed_makes_the_same_tree():
    check_repeatable(make(), n=3)
    check_repeatable(make(greedy_choice=False), n=3, environment=lambda: Trap(3))


def test_budgets():
    check_budgets(make(), n=3)


def test_n_below_two_is_refused():
    registered = spec("best_of_turn")
    options = build_options(registered, {})
    assert registered.needs_fork and registered.episodes(options, 4) == 4
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n >= 2; got 1"):
        registered.episodes(options, 1)
