"""What every sampler that branches between turns has to keep, and the small worlds to see it in."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from verl_hier.graph import RolloutGraph, build_table, graph_rows
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Sampler
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.interfaces import Generation
from verl_hier.rollout.recorded_policy import differences
from verl_hier.testing.rollout import ScriptedPolicy, replay_scripted, roll_out_scripted
from verl_hier_plugins.workers.react import React, ReactOptions

from .conftest import Corridor

MakeSampler = Callable[[], Sampler]
HOST = PluginHost.load({"builtin": True})


class Trap(Corridor):
    """A corridor that breaks under whoever jumps."""

    def step(self, action: str):
        if action == "jump":
            raise RuntimeError("the floor broke")
        return super().step(action)


def wander(prompt: str, sampling) -> str:
    """Right, left or a jump, by the seed of the request alone."""
    draw = random.Random(sampling.seed).random()
    return "right" if draw < 0.6 else "left" if draw < 0.85 else "jump"


def walk(prompt: str, sampling) -> str:
    """Right or left, by the seed of the request alone."""
    return "right" if random.Random(sampling.seed).random() < 0.7 else "left"


class Steady(ScriptedPolicy):
    """Knows all words beforehand, so that their numbers do not depend on which it meets first."""

    def __init__(self, tokenizer, answer) -> None:
        super().__init__(tokenizer, answer)
        tokenizer.encode("task : do it | at 0 1 2 3 4 right left jump")


class Slow(Steady):
    """Answers after a random while."""

    async def generate(self, prompt, sampling, conversation) -> Generation:
        await asyncio.sleep(random.random() / 1000)
        return await super().generate(prompt, sampling, conversation)


def parts(sampler: Sampler, **changes: Any) -> dict[str, Any]:
    """Arguments of a scripted rollout; `changes` win."""
    return {
        "environment": lambda: Corridor(4),
        "worker": lambda: React(ReactOptions()),
        "sampler": sampler,
        **changes,
    }


def roll(sampler: Sampler, *, answer=walk, n: int = 4, seed: int = 0, **changes: Any) -> RolloutGraph:
    """One scripted rollout, its invariants checked."""
    graph, _ = asyncio.run(roll_out_scripted(**parts(sampler, **changes), answer=answer, n=n, seed=seed))
    check_leaves(graph)
    return graph


def check_leaves(graph: RolloutGraph) -> None:
    """No leaf is a copy of another, and rows train exactly the turns on the paths of the leaves, once each."""
    paths = [tuple(graph.path(e.id)) for e in graph.complete()]
    assert len(set(paths)) == len(paths)
    trained = Counter(turn for row in graph_rows(graph, lambda node: True) for turn in trained_turns(row))
    kept = {node for e in graph.complete() if e.trained for node in graph.path(e.id)}
    assert trained == Counter({node: 1 for node in kept if graph.nodes[node].trained})
    assert set(build_table([graph]).step_turn) == set(range(len({node for path in paths for node in path})))


def trained_turns(row) -> set[int]:
    return {turn for turn, mask in zip(row.turn_index, row.mask, strict=True) if mask}


def check_repeatable(make: MakeSampler, *, answer=wander, n: int = 4, seed: int = 3, **changes: Any) -> None:
    """Same seed, same tree: again, with a policy of uneven speed, and from the stored graph alone."""
    changes = {"environment": lambda: Trap(4), **changes}
    asked = {"answer": answer, "n": n, "seed": seed}
    first, policy = asyncio.run(roll_out_scripted(**parts(make(), **changes), **asked, policy=Steady))
    for speed in (Steady, Slow, Slow):
        assert roll(make(), **asked, **changes, policy=speed).to_dict() == first.to_dict()
    stored = RolloutGraph.from_dict(first.to_dict())
    again = asyncio.run(replay_scripted(stored, policy.tokenizer, **parts(make(), **changes)))
    assert differences(stored, again) == []


BUDGETS = [
    BudgetOptions(tokens=17),
    BudgetOptions(turns=7),
    BudgetOptions(turns=1),
    BudgetOptions(environment_calls=9),
    BudgetOptions(leaves=1),
    BudgetOptions(leaves=3),
    BudgetOptions(tokens=40, turns=15, leaves=5),
]


def check_budgets(make: MakeSampler, n: int, **changes: Any) -> None:
    """No limit is exceeded, and what a limit cut is no leaf; unevenly fast policies make the same tree."""
    for budget in BUDGETS:
        graph = roll(make(), n=n, budget=budget, **changes)
        spent = {
            "tokens": sum(len(node.action) - node.decision.get("forced", 0) for node in graph.nodes),
            "turns": len(graph.nodes),
            "environment_calls": graph.counts.get("environment_calls", 0),
            "leaves": sum(1 for e in graph.complete() if e.trained),
        }
        for name, amount in spent.items():
            limit = getattr(budget, name)
            assert limit is None or amount <= limit, (name, amount, limit)
        assert not any(e.status == "running" for e in graph.episodes)
    check_repeatable(make, n=n, budget=BudgetOptions(tokens=23), **changes)
    check_repeatable(make, n=n, budget=BudgetOptions(turns=9), **changes)


def spec(name: str) -> SamplerSpec:
    """A registered sampler."""
    found = HOST.spec("sampler", name)
    assert isinstance(found, SamplerSpec)
    return found
