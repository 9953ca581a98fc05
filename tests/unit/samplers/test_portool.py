"""Trajectories that fork at every turn: how many go on, who is chosen, what the siblings are."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, walk, wander
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.testing import credit_of
from verl_hier_plugins.samplers.portool import PORToolSampler, PORToolSamplerOptions


def make(**options):
    return lambda: PORToolSampler(PORToolSamplerOptions(**options))


def turns_at(graph, depth):
    """All turns at a depth, those of candidates that were not chosen included."""
    return [node for node in graph.nodes if node.turn == depth]


def test_every_round_doubles_the_open_ones_and_keeps_n():
    # Nobody errs, so all trajectories end with the third turn.
    graph = roll(make()(), n=4, environment=Corridor, answer=lambda prompt, sampling: "right")
    assert [len(turns_at(graph, depth)) for depth in range(4)] == [4, 8, 8, 0]
    assert [e.source for e in graph.episodes[:4]] == [-1] * 4 and graph.counts["forks"] == 8
    assert sum(1 for _ in graph.complete()) == 4 and not graph.short
    assert graph.counts["not_chosen"] == 8
    assert {e.error for e in graph.episodes if e.status == "pruned"} == {"not_chosen"}


def test_the_number_of_candidates_is_the_fork_factor():
    graph = roll(make(forks=3)(), n=2, environment=Corridor, answer=lambda prompt, sampling: "right")
    assert [len(turns_at(graph, depth)) for depth in range(3)] == [2, 6, 6]
    for parent in turns_at(graph, 0):
        children = sum(node.parent == parent.id for node in graph.nodes)
        assert children in (0, 3)


def test_those_that_ended_take_a_place_and_are_not_forked():
    graph = roll(make()(), n=6, environment=lambda: Corridor(2), answer=walk, seed=2)
    assert not graph.short and len({len(graph.path(e.id)) for e in graph.complete()}) > 1
    paths = [graph.path(e.id) for e in graph.complete()]
    done = 0
    for depth in range(1, max(map(len, paths))):
        done += sum(len(path) == depth for path in paths)
        assert len(turns_at(graph, depth)) == 2 * (6 - done)


def test_any_candidate_may_be_chosen():
    kept = Counter()
    for seed in range(80):
        graph = roll(make()(), n=2, environment=lambda: Corridor(2), seed=seed, answer=lambda prompt, sampling: "right")
        kept[tuple(e.id for e in graph.complete())] += 1
    assert set(kept) == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)} and min(kept.values()) >= 5


def test_siblings_of_a_fork_are_compared():
    graphs = [roll(make()(), n=6, seed=seed) for seed in range(6)]
    siblings = 0
    for graph in graphs:
        table = build_table([graph])
        credit = credit_of("portool", table, trajectory_weight=0.0)
        for parent in range(len(table)):
            children = credit[table["parent"] == parent]
            siblings += len(children) > 1
            assert children.sum() == pytest.approx(0.0)
    assert siblings > 10


def test_a_limit_makes_no_copies():
    graph = roll(make()(), n=4, answer=lambda prompt, sampling: "left", limits=Limits(max_turns=3))
    assert [e.status for e in graph.complete()] == ["truncated"] * 4
    assert graph.counts["idle_forks"] == 4 and not graph.short
    assert {e.error for e in graph.episodes} == {"max_turns", "not_chosen", "idle"}


def test_a_broken_world_costs_its_own_branch_and_another_candidate_steps_in():
    graphs = [roll(make()(), answer=wander, n=4, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert len(lost) > 6 and not all(graph.short for graph in lost)
    for graph in graphs:
        assert sum(1 for _ in graph.complete()) <= 4


def test_the_same_seed_makes_the_same_tree():
    check_repeatable(make(), n=4)


def test_budgets():
    check_budgets(make(forks=3), n=4)


def test_n_below_two_is_refused():
    registered = spec("portool")
    options = build_options(registered, {})
    assert registered.needs_fork and registered.episodes(options, 8) == 8
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n >= 2; got 1"):
        registered.episodes(options, 1)
    with pytest.raises(RecipeError, match=r"hier.sampler: 'portool' refuses these options: forks must be at least 2"):
        build_options(registered, {"forks": 1})
