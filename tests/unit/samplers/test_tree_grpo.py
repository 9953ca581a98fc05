"""Trees that branch after randomly drawn turns: what exists, what is kept, what it costs when something breaks."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table
from verl_hier.host.options import build_options
from verl_hier.testing import credit_of
from verl_hier_plugins.samplers.tree_grpo import TreeGRPOSampler, TreeGRPOSamplerOptions


def make(**options):
    return lambda: TreeGRPOSampler(TreeGRPOSamplerOptions(**options))


def test_the_papers_defaults_are_two_trees_of_three_leaves():
    graph = roll(make()(), n=6, seed=1)
    assert not graph.short and not [e for e in graph.episodes if e.status == "pruned"]
    assert Counter(e.tree for e in graph.complete()) == {0: 3, 1: 3}
    assert [e.source for e in graph.episodes] == [-1, -1, 0, 1, 0, 1]
    for fork in graph.episodes[2:]:
        drawn = fork.decision
        assert drawn["round"] == 0 and drawn["draw"] in (0, 1)
        # Without branches the places of a tree are the start and the inner turns of its trunk.
        assert drawn["places"] == len(graph.path(fork.source))
        assert fork.shared < len(graph.path(fork.source))


def test_places_are_drawn_uniformly_from_the_start_and_the_inner_turns_of_the_tree():
    # A corridor of four is walked in four turns by a policy that never errs: places 0, 1, 2, 3.
    graph = roll(make(trees=1, nodes=400, leaves=401)(), n=401, answer=lambda prompt, sampling: "right")
    shared = Counter(e.shared for e in graph.episodes[1:])
    assert set(shared) == {0, 1, 2, 3} and min(shared.values()) > 70


def test_a_later_round_draws_from_the_branches_too():
    graph = roll(make(trees=1, nodes=4, rounds=3, leaves=13)(), n=13, seed=2)
    assert not graph.short
    assert {e.source for e in graph.episodes[5:]} - {0}, "no branch of a branch"
    assert all(e.tree == 0 for e in graph.episodes)
    assert [e.decision["round"] for e in graph.episodes[1:]] == [0] * 4 + [1] * 4 + [2] * 4


def test_leaves_beyond_k_are_no_leaves_and_train_only_what_they_share():
    graph = roll(make(trees=2, nodes=3, rounds=2, leaves=2)(), n=4, seed=4)
    assert not graph.short and Counter(e.tree for e in graph.complete()) == {0: 2, 1: 2}
    given_up = [e for e in graph.episodes if e.status == "pruned"]
    assert len(given_up) == graph.counts["not_kept"] == 10 and {e.error for e in given_up} == {"not_kept"}
    assert {e.success for e in given_up} == {True}
    assert len(build_table([graph])["episodes.return"]) == 4


def test_any_leaf_may_be_kept():
    kept = Counter(
        tuple(e.id for e in roll(make(trees=1, nodes=2, leaves=1)(), n=1, seed=seed).complete()) for seed in range(60)
    )
    assert set(kept) == {(0,), (1,), (2,)} and min(kept.values()) > 8


def test_advantages_are_those_of_the_kept_leaves():
    graph = roll(make(trees=2, nodes=3, rounds=2, leaves=2)(), n=4, seed=4)
    table = build_table([graph])
    returns = table["episodes.return"]
    leaf = {episode: step for step, episode in enumerate(table.step_episode)}
    credit = credit_of("tree_grpo", table, variant="inter")
    expected = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    assert credit[[leaf[e] for e in range(4)]] == pytest.approx(expected)


def test_a_broken_world_costs_its_own_branch():
    graphs = [roll(make()(), answer=wander, n=6, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert lost
    for graph in lost:
        failed = sum(e.status == "failed" for e in graph.episodes)
        assert graph.short and len(graph.episodes) == 6 and sum(1 for _ in graph.complete()) == 6 - failed


def test_a_tree_whose_trunk_was_lost_grows_from_the_start():
    def jumps_first(prompt, sampling):
        return "jump" if jumps_first.left.pop() else "right"

    jumps_first.left = [False] * 100 + [True]
    graph = roll(make(trees=1)(), answer=jumps_first, n=3, environment=lambda: Trap(4))
    assert [e.status for e in graph.episodes] == ["failed", "finished", "finished"]
    assert [e.shared for e in graph.episodes[1:]] == [0, 0] and graph.short


def test_the_same_seed_makes_the_same_tree():
    check_repeatable(make(nodes=3, rounds=2, leaves=2), n=4)


def test_budgets():
    check_budgets(make(nodes=3, rounds=2, leaves=3), n=6)
    graph = roll(make()(), n=6, budget=None, environment=lambda: Corridor(2))
    assert "budget_skipped" not in graph.counts


def test_n_is_trees_times_leaves():
    registered = spec("tree_grpo")
    options = build_options(registered, {"trees": 4, "leaves": 2})
    assert registered.needs_fork and registered.episodes(options, 8) == 8
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* must be 8; got 6"):
        registered.episodes(options, 6)


@pytest.mark.parametrize("options, told", [({"trees": 0}, "at least 1"), ({"leaves": 4}, "leaves = 4 cannot be kept")])
def test_options_that_cannot_work_are_refused(options, told):
    with pytest.raises(RecipeError, match=f"hier.sampler: 'tree_grpo' refuses these options: .*{told}"):
        build_options(spec("tree_grpo"), options)
