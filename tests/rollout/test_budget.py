"""Budgets: never exceeded, fair, and independent of who is faster."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Sampler
from verl_hier.rollout.budget import Budget, BudgetOptions
from verl_hier.rollout.interfaces import Generation
from verl_hier.testing.rollout import ScriptedPolicy, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import React, ReactOptions

from .conftest import Corridor


def wander(prompt: str, sampling) -> str:
    rng = random.Random(sampling.seed)
    return " ".join(["right"] * rng.randint(1, 4)) if rng.random() < 0.3 else "right"


def roll(budget: BudgetOptions, sampler=None, **options):
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: Corridor(4),
            worker=lambda: React(ReactOptions()),
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
    budget = Budget(BudgetOptions(tokens=10, turns=5))
    assert [g.tokens for g in budget.grants(4)] == [2, 2, 2, 2]
    budget.charge("tokens", 1)
    assert [g.tokens for g in budget.grants(3)] == [3, 3, 3]
    assert len(budget.grants(9)) == 5 and [g.environment_calls for g in budget.grants(1)] == [None]
