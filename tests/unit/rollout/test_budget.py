"""Budgets: never exceeded, fair, and independent of who is faster."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Generation, Sampler
from verl_hier.rollout.budget import Budget, BudgetOptions
from verl_hier.testing.rollout import ScriptedPolicy, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import React, ReactOptions


def wander(prompt: str, sampling) -> str:
    rng = random.Random(sampling.seed)
    return " ".join(["right"] * rng.randint(1, 4)) if rng.random() < 0.3 else "right"


def roll(budget: BudgetOptions, sampler=None, worker=React, **options):
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(4),
            worker=lambda: worker(ReactOptions()),
            sampler=sampler or Independent(NoOptions()),
            answer=wander,
            budget=budget,
            **options,
        )
    )
    return graph


LIMITS = st.builds(
    BudgetOptions,
    tokens=st.none() | st.integers(1, 60),
    turns=st.none() | st.integers(1, 20),
    environment_calls=st.none() | st.integers(1, 20),
    leaves=st.none() | st.integers(1, 6),
)


@settings(max_examples=40, deadline=None)
@given(LIMITS, st.integers(1, 5), st.integers(0, 5))
def test_no_limit_is_exceeded_and_what_was_cut_is_no_leaf(limits, n, seed):
    graph = roll(limits, n=n, seed=seed)
    spent = {
        "tokens": sum(len(node.action) for node in graph.nodes),
        "turns": len(graph.nodes),
        "environment_calls": graph.counts.get("environment_calls", 0),
        "leaves": sum(e.status not in ("pruned", "failed") for e in graph.episodes),
    }
    for name, amount in spent.items():
        limit = getattr(limits, name)
        assert limit is None or amount <= limit
        if limit is not None and name != "leaves":
            assert graph.budget[name] == [amount, limit]
    cut = [e for e in graph.episodes if e.status == "pruned"]
    assert len(cut) == graph.counts.get("budget_pruned", 0) + sum(e.error == "sampler_finished" for e in cut)
    assert graph.short == (sum(1 for _ in graph.complete()) < n)


class Slow(ScriptedPolicy):
    """Answers after a random while."""

    async def generate(self, prompt, sampling, conversation) -> Generation:
        await asyncio.sleep(random.random() / 500)
        return await super().generate(prompt, sampling, conversation)


@pytest.mark.parametrize(
    "budget", [BudgetOptions(tokens=23), BudgetOptions(turns=11), BudgetOptions(environment_calls=9)]
)
def test_the_tree_does_not_depend_on_who_is_faster(budget, monkeypatch):
    steady = roll(budget, n=5).to_dict()
    monkeypatch.setattr("verl_hier.testing.rollout.ScriptedPolicy", Slow)
    for _ in range(3):
        assert roll(budget, n=5).to_dict() == steady


def test_a_share_that_is_used_up_makes_a_piece(run):
    graph = roll(BudgetOptions(tokens=7), n=2)
    assert any(node.partial for node in graph.nodes)


class Endless(Sampler):
    """Starts episodes for ever."""

    async def sample(self, rollout):
        while True:
            await rollout.start().run()


def test_the_budget_ends_a_sampler_that_does_not_look():
    graph = roll(BudgetOptions(leaves=3), Endless(), n=3)
    assert len(graph.episodes) == 3 and not graph.short and graph.counts["budget_ended"] == 1
    graph = roll(BudgetOptions(wall_s=0.2), Endless(), n=3)
    assert graph.counts["budget_ended"] == 1 and graph.budget["wall_s"][0] >= 0.2


@pytest.mark.parametrize("name", ["tokens", "turns", "environment_calls", "leaves", "wall_s"])
def test_a_zero_budget_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        BudgetOptions(**{name: 0})


def test_shares_are_equal_and_unused_ones_come_back():
    async def check():
        budget = Budget(BudgetOptions(tokens=10, turns=5))
        with ExitStack() as turns:
            grants = [turns.enter_context(grant) for grant in await budget.grant(4, 100)]
            assert [grant.tokens for grant in grants] == [2, 2, 2, 2] and budget.left("turns") == 1
            grants[0].spend_turn(1)
        with ExitStack() as turns:
            assert [turns.enter_context(grant).tokens for grant in await budget.grant(3, 100)] == [3, 3, 3]
        grants = await budget.grant(9, 2)
        assert [grant.tokens for grant in grants] == [2] * 4 and all(grant.spend_call() for grant in grants)

    asyncio.run(check())


class SideBySide(Sampler):
    """Steps its episodes as `verl-hier new sampler` shows it."""

    async def sample(self, rollout):
        roots = [rollout.start() for _ in range(rollout.n)]
        while roots := [root for root in roots if not root.over]:
            await rollout.gather(root.step() for root in roots)


def test_episodes_that_step_side_by_side_share_the_budget():
    graph = roll(BudgetOptions(tokens=40), SideBySide(), n=8, policy=Slow)
    assert 0 < sum(len(node.action) for node in graph.nodes) <= 40
    assert len({node.episode for node in graph.nodes}) == 8, "each episode gets a turn before any gets a second one"


class Asked(ScriptedPolicy):
    """Answers its first request when it is told to."""

    asked: asyncio.Event
    told: asyncio.Event

    async def generate(self, prompt, sampling, conversation) -> Generation:
        self.asked.set()
        await self.told.wait()
        return await super().generate(prompt, sampling, conversation)


def test_the_turn_of_a_step_that_is_given_up_is_paid_for(monkeypatch):
    """The policy answers all the same, and until then nobody else has what the turn may spend."""
    monkeypatch.setattr(Asked, "asked", asyncio.Event(), raising=False)
    monkeypatch.setattr(Asked, "told", asyncio.Event(), raising=False)
    left = []

    class GivesUp(Sampler):
        async def sample(self, rollout):
            episode = rollout.start()
            step = asyncio.ensure_future(episode.step())
            await Asked.asked.wait()
            step.cancel()
            await asyncio.wait([step])
            left.append(rollout.budget.left("turns"))
            Asked.told.set()
            await episode.run()

    graph = roll(BudgetOptions(turns=2), GivesUp(), n=1, policy=Asked)
    assert left == [1] and len(graph.nodes) == 2 and graph.budget["turns"] == [2, 2]


class Tangle(Sampler):
    """Several coroutines at once, each of which starts, steps, runs and forks episodes as it likes."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    async def sample(self, rollout):
        await rollout.gather(self._one(rollout) for _ in range(self._chance.randint(2, 5)))

    async def _one(self, rollout):
        for _ in range(self._chance.randint(1, 5)):
            act = self._chance.choice(["start", "step", "pieces", "run", "advance", "fork", "prune"])
            if act == "start" or not rollout.episodes:
                rollout.start(trained=self._chance.random() < 0.8)
                continue
            episode = self._chance.choice(rollout.episodes)
            if act == "step":
                await episode.step()
            elif act == "pieces":
                await episode.step(tokens=self._chance.randint(1, 3))
            elif act == "run":
                await episode.run(turns=2)
            elif act == "advance":
                await rollout.advance(rollout.episodes)
            elif act == "fork":
                await episode.fork()
            elif self._chance.random() < 0.3:
                episode.prune()


class Twice(React):
    """Acts before its first turn and twice after each."""

    async def run(self, episode):
        step = await episode.reset()
        step = await episode.act("right")
        context = episode.context("agent")
        while not step.done:
            turn = await episode.generate(context.observe(step.text))
            await episode.act(turn.text)
            step = await episode.act("left")


@settings(max_examples=150, deadline=None)
@given(LIMITS, st.integers(0, 10**6), st.booleans())
def test_no_order_of_concurrent_steps_exceeds_a_limit(limits, seed, twice):
    graph = roll(limits, Tangle(seed), n=4, seed=seed, policy=Slow, worker=Twice if twice else React)
    for used, limit in graph.budget.values():
        assert used <= limit
    assert limits.tokens is None or graph.budget["tokens"][0] == sum(len(node.action) for node in graph.nodes)
    assert limits.turns is None or graph.budget["turns"][0] == len(graph.nodes)
    calls = graph.counts.get("environment_calls", 0)
    assert limits.environment_calls is None or graph.budget["environment_calls"][0] == calls
