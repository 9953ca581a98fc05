"""Samplers that branch inside turns: `treerl`, `treepo`, `latr`."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.random_policy import RandomPolicy, tokenizer
from verl_hier.errors import RecipeError
from verl_hier.graph import graph_rows
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.latr import LATR, LATROptions, common_subsequence, common_suffix
from verl_hier_plugins.samplers.treepo import TreePOSampler, TreePOSamplerOptions
from verl_hier_plugins.samplers.treerl import TreeRLSampler, TreeRLSamplerOptions, leaves_of
from verl_hier_plugins.workers.react import React, ReactOptions

SAMPLERS = {
    "treerl": lambda: TreeRLSampler(TreeRLSamplerOptions(trees=2, tokens=2, rounds=2, branches=1)),
    "treepo": lambda: TreePOSampler(TreePOSamplerOptions(segment_tokens=3)),
    "latr": lambda: LATR(LATROptions(lookahead=(4, 8), tree_tokens=40, largest_overlap=0.9, longest_suffix=0.9)),
}


def roll(sampler, seed=0, delay=0.0, environment=None, **options):
    RandomPolicy.delay = delay
    return asyncio.run(
        roll_out_scripted(
            environment=environment or (lambda: Corridor(2)),
            worker=lambda: React(ReactOptions()),
            sampler=sampler,
            answer=lambda prompt, sampling: "",
            policy=RandomPolicy,
            tokenizer=tokenizer(),
            seed=seed,
            n=options.pop("n", 6),
            **options,
        )
    )


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("seed", range(4))
def test_trees_are_whole_repeatable_and_share_their_tokens(name, seed):
    graph, policy = roll(SAMPLERS[name](), seed)
    assert sum(e.trained for e in graph.complete()) == 6 and not graph.short
    assert roll(SAMPLERS[name](), seed, delay=0.002)[0].to_dict() == graph.to_dict()
    leaves = [sum(len(graph.nodes[i].action) for i in graph.path(e.id)) for e in graph.complete()]
    used = {i for e in graph.complete() for i in graph.path(e.id)}
    assert sum(sum(row.mask) for row in graph_rows(graph, lambda node: True)) == sum(
        len(graph.nodes[i].action) for i in used
    )
    assert sum(leaves) > sum(len(graph.nodes[i].action) for i in used)
    asked = {
        tuple(graph.prompt(n.id) + n.action[: n.decision.get("forced", 0)]) for n in graph.nodes if n.prompt_tokens
    }
    assert asked == {tuple(prompt) for prompt in policy.prompts}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_broken_world_costs_branches_not_the_group(name):
    graph, _ = roll(SAMPLERS[name](), environment=lambda: Corridor(3, break_at=1), seed=1)
    assert graph.counts["failed_raised"] == sum(e.status == "failed" for e in graph.episodes) > 0
    assert graph.short == (sum(1 for _ in graph.complete()) < 6)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("limit", [{"tokens": 40}, {"turns": 12}, {"environment_calls": 8}, {"leaves": 4}])
def test_budgets_hold(name, limit):
    graph, _ = roll(SAMPLERS[name](), budget=BudgetOptions(**limit))
    (used, most), *_ = graph.budget.values()
    assert used <= most
    assert roll(SAMPLERS[name](), delay=0.002, budget=BudgetOptions(**limit))[0].to_dict() == graph.to_dict()


def test_treerl_branches_before_the_least_sure_tokens_of_each_tree():
    options = TreeRLSamplerOptions(trees=1, tokens=2, rounds=1, branches=2)
    graph, _ = roll(TreeRLSampler(options), seed=3, n=5)
    trunk = [(-p, k) for k, p in enumerate(p for i in graph.path(0) for p in graph.nodes[i].logprobs)]
    chosen = sorted(trunk, key=lambda pair: (-pair[0], pair[1]))[:2]
    forks = graph.episodes[1:]
    assert [e.decision["token"] for e in forks] == [k for _, k in chosen] * 2
    for fork in forks:
        shared = sum(len(graph.nodes[i].action) for i in graph.path(fork.id)[: fork.shared])
        assert shared == fork.decision["token"]
        assert fork.decision["entropy"] == max(p for p, k in chosen if k == shared)


def test_treerl_keeps_as_many_leaves_as_wanted():
    options = TreeRLSamplerOptions(trees=2, tokens=2, rounds=1, branches=2)
    assert options.grown == 10 and leaves_of(options, 10) == 10
    graph, _ = roll(TreeRLSampler(options), n=4)
    assert graph.counts["not_kept"] == 6 and sum(e.status == "pruned" for e in graph.episodes) == 6
    for n in (0, 11):
        with pytest.raises(RecipeError, match=r"actor_rollout_ref\.rollout\.n"):
            leaves_of(options, n)


def test_treepo_cuts_turns_into_segments_and_falls_back():
    graph, _ = roll(TreePOSampler(TreePOSamplerOptions(segment_tokens=2)), seed=1, n=12)
    assert max(len(node.action) for node in graph.nodes) <= 2
    assert {e.tree for e in graph.episodes} == {0}
    assert any(e.decision.get("why") == "fallback" for e in graph.episodes) == (graph.counts.get("fallbacks", 0) > 0)
    assert sum(1 for _ in graph.complete()) == 12


def test_latr_forks_at_close_seconds_and_prunes_what_says_the_same():
    options = LATROptions(lookahead=(4,), tree_tokens=16, largest_overlap=1.0, longest_suffix=1.0)
    graph, _ = roll(LATR(options), seed=2)
    forks = [e for e in graph.episodes if e.decision.get("why") == "close"]
    assert forks
    for fork in forks:
        first, second = fork.decision["first"], fork.decision["second"]
        assert second > 0.15 and first - second < 0.25
        node = graph.nodes[graph.path(fork.id)[fork.shared]]
        assert node.decision["forced"] == 1 and node.logprobs[0] == pytest.approx(math.log(second))
    graph, _ = roll(LATR(LATROptions(lookahead=(4,), tree_tokens=16, largest_overlap=0.0)), seed=2)
    assert graph.counts["too_similar"] > 0 and sum(1 for _ in graph.complete()) == 6
    assert any(e.decision.get("why") == "plain" for e in graph.episodes)


def test_latr_share_falls_with_the_steps():
    graph, _ = roll(LATR(LATROptions()), step=400)
    assert sum(e.decision.get("why") == "plain" for e in graph.complete()) >= 5


def test_overlap_of_two_texts():
    assert common_suffix([1, 2, 3], [9, 2, 3]) == 2 and common_suffix([], [1]) == 0
    assert common_subsequence([1, 2, 3, 4], [2, 9, 4, 3]) == 2 and common_subsequence([1], []) == 0


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: TreePOSamplerOptions(divergence=1), "never branches"),
        (lambda: TreePOSamplerOptions(segment_tokens=0), "at least 1"),
        (lambda: TreeRLSamplerOptions(tokens=0), "at least 1"),
        (lambda: LATROptions(full=2.0), "within"),
        (lambda: LATROptions(lookahead=()), "lookahead"),
        (lambda: LATROptions(shares={"x": 1.0}), "shares"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
