"""A thousand random worlds under random samplers, workers and budgets: what has to hold of every rollout graph."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.fixtures.random_policy import RandomEnvironment, RandomPolicy, tokenizer
from tests.fixtures.tiers import quick
from verl_hier.graph import RolloutGraph, build_table, graph_rows
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Sampler
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.recorded_policy import differences
from verl_hier.testing.rollout import replay_scripted, roll_out_scripted
from verl_hier_plugins.workers.planner_executor import PlannerExecutor, PlannerExecutorOptions
from verl_hier_plugins.workers.react import React, ReactOptions

CASES = 1000
BATCHES = 10
LEAVES = 4
SMALL = {
    "adaptive_n": {"start": 2, "step": 1},
    "arpo": {"initial_rollouts": 2},
    "aepo": {"initial_rollouts": 2},
    "latr": {"lookahead": [3, 5], "tree_tokens": 20},
    "nested": {"plans": 2},
    "tree_grpo": {"trees": 2, "leaves": 2},
    "treepo": {"segment_tokens": 2},
    "treerl": {"trees": 2, "tokens": 1, "branches": 1},
    "designs": {"designs": 2, "executions": 2},
}
"""Options with which samplers make four leaves of short episodes; the others do so as they come."""


class Chaos(Sampler):
    """Does anything that a sampler may, at random."""

    async def sample(self, rollout):
        chance = rollout.rng("chaos")
        rollout.start()
        for _ in range(chance.randint(3, 12)):
            episode = chance.choice(rollout.episodes)
            act = chance.choice(
                ["advance", "advance", "pieces", "run", "fork", "force", "split", "stop", "prune", "start"]
            )
            path = episode.path
            if act == "advance":
                await rollout.advance(rollout.episodes)
            elif act == "pieces":
                await rollout.advance(chance.sample(rollout.episodes, len(rollout.episodes)), chance.randint(1, 3))
            elif act == "run":
                await rollout.run([episode])
            elif act == "fork":
                await episode.fork(after=chance.randint(0, len(path)))
            elif act == "force":
                forced = [rollout.rng(len(path)).randint(3, 7) for _ in range(chance.randint(1, 2))]
                await episode.fork(
                    after=chance.randint(0, len(path)), forced=forced, forced_logprobs=[-1.0] * len(forced)
                )
            elif act == "split" and path:
                node = rollout.graph.nodes[chance.choice(path)]
                if len(node.action) > 1:
                    rollout.split(node, chance.randrange(1, len(node.action)))
            elif act == "stop" and path:
                episode.stop("enough")
            elif act == "prune":
                episode.prune("why not")
            elif act == "start":
                rollout.start(greedy=chance.random() < 0.3, trained=chance.random() < 0.8)


def sampler_of(chance: random.Random) -> Sampler:
    if chance.random() < 0.4:
        return Chaos()
    specs = PluginHost.load({"builtin": True}).specs("sampler")
    name = chance.choice(sorted(specs))
    return specs[name].factory(build_options(specs[name], SMALL.get(name, {})))


def parts_of(case: int) -> dict:
    chance = random.Random(case)
    rules = chance.randrange(10**6)
    workers = (
        lambda: React(ReactOptions(history=chance_history)),
        lambda: PlannerExecutor(PlannerExecutorOptions(subgoal_turns=2)),
    )
    chance_history = chance.choice([0, 0, 1])
    limits = {name: chance.choice([None, None, None, chance.randint(1, 60)]) for name in ("tokens", "turns", "leaves")}
    return {
        "environment": lambda: RandomEnvironment(rules),
        "worker": chance.choice(workers),
        "sampler": sampler_of(chance),
        "limits": Limits(max_turns=6, max_tokens_per_turn=8, context_tokens=chance.choice([60, 400])),
        "budget": BudgetOptions(**limits, environment_calls=chance.choice([None, None, 20])),
    }


def roll(case: int):
    return asyncio.run(
        roll_out_scripted(
            **parts_of(case),
            answer=lambda prompt, sampling: "",
            policy=RandomPolicy,
            tokenizer=tokenizer(),
            n=LEAVES,
            seed=case,
            task={"instruction": "do it"},
        )
    )


def check(graph: RolloutGraph, prompts: list[list[int]]) -> None:
    graph.check()
    said: dict[int, list[int]] = {}
    for node in graph.nodes:  # what was cut has one seed
        said.setdefault(node.decision["seed"], []).extend(node.action)
    asked = Counter(
        tuple(graph.prompt(node.id) + said[node.decision["seed"]][: node.decision.get("forced", 0)])
        for node in graph.nodes
        if node.prompt_tokens
    )
    assert asked <= Counter(map(tuple, prompts)), "a stored prompt is not what the server saw"
    for used, most in graph.budget.values():
        assert used <= most
    trained: Counter[int] = Counter()
    for row in graph_rows(graph, lambda node: True, "first_owner"):
        last = graph.nodes[row.nodes[-1]]
        assert row.prompt + row.response == graph.prompt(last.id) + last.action
        trained.update({turn for turn, mask in zip(row.turn_index, row.mask, strict=True) if mask})
    assert all(count == 1 for count in trained.values()), "a turn is trained twice"
    complete = list(graph.complete())
    on_paths = {i for e in complete for i in graph.path(e.id)}
    assert set(trained) == {i for i in on_paths if graph.nodes[i].trained}
    for episode in complete:
        assert episode.ret == pytest.approx(sum(graph.nodes[i].reward for i in graph.path(episode.id)))
    if complete:
        assert len(build_table([graph])) == len(on_paths)


@pytest.mark.parametrize("batch", quick(4, range(BATCHES)))
def test_invariants(batch):
    for case in range(batch * CASES // BATCHES, (batch + 1) * CASES // BATCHES):
        graph, policy = roll(case)
        try:
            check(graph, policy.prompts)
            if case % 5 == 0 and not any(e.status == "failed" for e in graph.episodes):
                again = asyncio.run(
                    replay_scripted(graph, policy.tokenizer, **parts_of(case), task={"instruction": "do it"})
                )
                assert differences(graph, again) == []
        except Exception as error:
            raise AssertionError(f"case {case}: {error}") from error
