"""Samplers that branch inside turns: `treerl`, `treepo`, `latr`."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.random_policy import RandomPolicy, tokenizer
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table, graph_rows
from verl_hier.graph.rows import leaf_row
from verl_hier.host.specs import NoOptions
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.environments.prompt import PromptEnvironment
from verl_hier_plugins.samplers.latr import LATR, LATROptions
from verl_hier_plugins.samplers.treepo import TreePOSampler, TreePOSamplerOptions, forks_of_paths
from verl_hier_plugins.samplers.treerl import TreeRLSampler, TreeRLSamplerOptions, leaves_of
from verl_hier_plugins.workers.react import React, ReactOptions

ONE_TURN = partial(PromptEnvironment, NoOptions())
SAMPLERS = {
    "treerl": lambda: TreeRLSampler(TreeRLSamplerOptions(trees=2, tokens=2, rounds=2, branches=1)),
    "treepo": lambda: TreePOSampler(TreePOSamplerOptions(segment_tokens=3, first_divergence=None)),
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
    paths = [graph.path(e.id) for e in graph.complete() if e.trained]
    leaves = [sum(len(graph.nodes[i].action) for i in path) for path in paths]
    used = {i for path in paths for i in path}
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


def test_treerl_trains_as_many_leaves_as_wanted_and_knows_the_others():
    options = TreeRLSamplerOptions(trees=2, tokens=2, rounds=1, branches=2)
    assert options.grown == 10 and leaves_of(options, 10) == 10
    graph, _ = roll(TreeRLSampler(options), n=4)
    for leaf in (e for e in graph.complete() if e.withheld):
        row = leaf_row(graph, leaf.id)  # what a reward function of verl's is asked about
        assert sum(row.mask) == sum(len(graph.nodes[i].action) for i in graph.path(leaf.id))
    assert graph.counts["not_kept"] == 6 == sum(e.withheld for e in graph.complete())
    kept = {i for e in graph.complete() if e.trained for i in graph.path(e.id)}
    table = build_table([graph])
    assert table["episodes.trained"].sum() == 4 and table["episodes.withheld"].sum() == 6
    used = sorted({i for e in graph.complete() for i in graph.path(e.id)})
    assert [used[turn] for turn in table["trained"].nonzero()[0]] == sorted(kept)
    for rule in ("once", "repeat"):
        rows = graph_rows(graph, lambda node: True, rule)
        assert {row.episode for row in rows} <= {e.id for e in graph.complete() if e.trained}
        assert {turn for row in rows for turn, m in zip(row.turn_index, row.mask, strict=True) if m} == kept
    for n in (0, 11):
        with pytest.raises(RecipeError, match=r"actor_rollout_ref\.rollout\.n"):
            leaves_of(options, n)


def test_treerl_trains_a_leaf_that_succeeded_if_there_is_one():
    options = TreeRLSamplerOptions(trees=3, tokens=1, rounds=1, branches=1)
    few = 0
    for seed in range(60):
        graph, _ = roll(TreeRLSampler(options), seed, n=2)
        won = [e for e in graph.complete() if e.success]
        few += 0 < len(won) <= 2
        assert any(e.trained for e in won) == bool(won)
    assert few > 5


def test_treerl_branches_neither_behind_a_final_word_nor_at_a_branch_again():
    options = TreeRLSamplerOptions(trees=2, tokens=3, rounds=3, branches=1, final_words=("DOWN",))
    behind = again = 0
    for seed in range(20):
        graph, _ = roll(TreeRLSampler(options), seed, n=20)
        down = tokenizer().encode("down")[0]
        for fork in (e for e in graph.episodes if "token" in e.decision):
            source, at = graph.episodes[fork.source], fork.decision["token"]
            path = [(token, graph.nodes[i].episode) for i in graph.path(source.id) for token in graph.nodes[i].action]
            own = [token for token, episode in path[:at] if episode == path[at][1]]
            behind += down in own
            again += path[at][1] == source.id and at == source.decision.get("token")
    assert behind == again == 0
    graph, _ = roll(TreeRLSampler(TreeRLSamplerOptions(trees=1, final_words=())), 0, n=5)
    assert graph.counts["forks"] == 4


@pytest.mark.parametrize(
    "running, missing, ended, forks",
    [
        (2, 16, 0, [1, 1]),
        (3, 16, 1, [1, 1, 3]),  # the branches of a path that ended go to the others, what is left over to the last
        (3, 4, 0, [0, 0, 1]),
        (3, 3, 5, [0, 0, 0]),
        (2, 1, 0, [0, 0]),  # every path goes on
        (1, 9, 3, [7]),
    ],
)
def test_treepo_spreads_missing_leaves_as_released(running, missing, ended, forks):
    assert forks_of_paths(running, missing, ended, divergence=2) == forks


def test_treepo_draws_how_many_paths_start():
    counts = set()
    for seed in range(40):
        graph, _ = roll(TreePOSampler(TreePOSamplerOptions(segment_tokens=3, first_divergence=5)), seed, n=6)
        counts.add(1 + sum(e.source == 0 and e.shared == 0 and e.decision["why"] == "segment" for e in graph.episodes))
    assert counts == {2, 3, 4, 5}


def test_treepo_falls_back_to_leaves_that_ended_by_themselves():
    fallbacks = 0
    for seed in range(20):
        task = {"instruction": "do it", "messages": []}
        options = TreePOSamplerOptions(segment_tokens=2, first_divergence=4)
        graph, _ = roll(TreePOSampler(options), seed, n=16, environment=ONE_TURN, task=task)
        assert sum(e.trained for e in graph.complete()) == 16
        for fork in (e for e in graph.episodes if e.decision.get("why") == "fallback"):
            fallbacks += 1
            assert graph.episodes[fork.source].status == "finished" or fork.shared == 0
    assert fallbacks > 20


def test_treepo_cuts_turns_into_segments_and_falls_back():
    graph, _ = roll(TreePOSampler(TreePOSamplerOptions(segment_tokens=2)), seed=1, n=12)
    assert max(len(node.action) for node in graph.nodes) <= 2
    assert {e.tree for e in graph.episodes} == {0}
    assert any(e.decision.get("why") == "fallback" for e in graph.episodes) == (graph.counts.get("fallbacks", 0) > 0)
    assert sum(1 for _ in graph.complete()) == 12


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: TreePOSamplerOptions(divergence=1), "never branches"),
        (lambda: TreeRLSamplerOptions(tokens=0), "at least 1"),
        (lambda: TreePOSamplerOptions(first_divergence=1), "first_divergence"),
        (lambda: TreeRLSamplerOptions(final_words=("",)), "final_words"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
