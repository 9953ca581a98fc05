"""Worlds in processes of their own that raise, hang or die in the middle of a tree: each costs its own branch."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fixtures.faulty_async_environment import Options as AsyncOptionsOfWorld
from tests.fixtures.faulty_environment import Options
from tests.fixtures.tiers import quick
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.graph import graph_rows
from verl_hier.rollout import Limits, Request, Rollout
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.testing.rollout import ScriptedPolicy, WordTokenizer
from verl_hier_plugins.samplers.tree_grpo import TreeGRPOSampler, TreeGRPOSamplerOptions
from verl_hier_plugins.samplers.treepo import TreePOSampler, TreePOSamplerOptions
from verl_hier_plugins.workers.react import React, ReactOptions

SAMPLERS = {
    "tree_grpo": lambda: TreeGRPOSampler(TreeGRPOSamplerOptions(trees=2, nodes=3, leaves=3)),
    "treepo": lambda: TreePOSampler(TreePOSamplerOptions(segment_tokens=4)),
}
KINDS = {"raise": "raised", "hang": "timeout", "die": "killed"}


async def roll(fault: str, sampler, pool: EnvironmentPool):
    """Every eighth turn or so is the fault; the others count up to the limit of turns."""

    def answer(prompt, sampling):
        return fault if random.Random(sampling.seed).random() < 0.12 else "add"

    policy = ScriptedPolicy(WordTokenizer(), answer)
    request = Request(task={"start": 0, "instruction": "count"}, identity={"uid": "u", "index": 0}, n=6)
    setup = RolloutSetup({"default": policy}, PlainRenderer(policy.tokenizer), pool, Limits(max_turns=4), seed=7)
    rollout = Rollout(request, setup, lambda: React(ReactOptions()))
    try:
        return await asyncio.wait_for(roll_out(rollout, sampler), 120)
    finally:
        await pool.close()


@pytest.mark.parametrize("can_fork", [True, False])
@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("name", quick(2, SAMPLERS))
def test_a_fault_costs_its_own_branch(name, fault, can_fork):
    options = Options(can_fork=can_fork)
    pool = EnvironmentPool("tests.fixtures.faulty_environment:build", options, processes=2, time_limit_s=1.5)
    graph = asyncio.run(roll(fault, SAMPLERS[name](), pool))
    failed = [e for e in graph.episodes if e.status == "failed"]
    assert failed and graph.counts[f"failed_{KINDS[fault]}"] == len(failed)
    assert all(KINDS[fault] in (e.error or "") for e in failed), [e.error for e in failed]
    for episode in failed:
        assert graph.nodes[episode.leaf].text == fault
    complete = list(graph.complete())
    assert len(complete) >= 3
    assert all(graph.nodes[i].text == "add" for e in complete for i in graph.path(e.id))
    assert graph.short == (len(complete) < 6)
    assert {row.episode for row in graph_rows(graph, lambda node: True)} <= {e.id for e in complete}


@pytest.mark.parametrize("fork", ["recorded", "replay"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_recorded_world_is_asked_each_call_once(name, fork, tmp_path):
    options = AsyncOptionsOfWorld(str(tmp_path / "log"), asks_again=fork == "replay")
    service = "tests.fixtures.faulty_async_environment:service"
    pool = EnvironmentPool(service, options, asynchronous=AsyncOptions(), fork=fork)
    graph = asyncio.run(roll("nonsense", SAMPLERS[name](), pool))
    asked = [line for line in (tmp_path / "log").read_text().splitlines() if line in ("add", "nonsense")]
    calls = graph.counts["environment_calls"]
    assert graph.counts["forks"] > 0
    assert len(asked) == calls if fork == "recorded" else len(asked) > calls
