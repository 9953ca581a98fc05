"""The AEPO sampler: the penalty and both readings of its reset, the probe, and what it shares with ARPO."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table, graph_rows
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.rollout.budget import BudgetOptions
from verl_hier_plugins.samplers.aepo import AEPO, Balanced, BalancedOptions, Streak, hier_samplers, starting_chains

from .test_arpo import wander

SAMPLER = hier_samplers()

UNIT = 1 / math.log(1000)


def streak(*grew: bool, reset="sane", others=()) -> Streak:
    made = Streak(reset, set(others))
    for each in grew:
        made.note(each)
    return made


SHORT = Limits(max_turns=9)


def aepo(**options) -> AEPO:
    return AEPO(BalancedOptions(**options))


def grow(answer=wander, **changes):
    """A rollout; what is an option goes to the sampler."""
    options = {name: changes.pop(name) for name in list(changes) if name in BalancedOptions.__dataclass_fields__}
    return roll(aepo(**options), answer=answer, **{"environment": lambda: Corridor(4), "limits": SHORT, **changes})


# ---- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds, probability", [(0, 0.56), (1, 0.533684), (2, 0.504444), (5, 0.393333), (20, 0.0)])
def test_the_probability_falls_with_the_streak(rounds, probability):
    rule = Balanced(0.5, 0.2, 0.05, streak(*[True] * rounds))
    assert rule.probability(0.3) == pytest.approx(probability, abs=1e-6)
    assert rule.state() == {"streak": rounds}


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 2), st.floats(-3, 3), st.integers(0, 25))
def test_the_probability_is_the_share_of_the_draws_that_branch(base, weight, change, rounds):
    rule, steps = Balanced(base, weight, 0.05, streak(*[True] * rounds)), 200
    share = sum(rule.branches((i + 0.5) / steps, change) for i in range(steps)) / steps
    assert share == pytest.approx(rule.probability(change), abs=1.5 / steps)


def test_a_streak_ends_with_a_round_without_a_chain():
    assert streak(True, True, False, True).length == 1
    assert streak(True, True, False).length == 0


def test_the_released_reset_looks_at_the_batch():
    """It needs another task that got a chain in the round; a task by itself keeps its streak."""
    assert streak(True, True, False, True, reset="released").length == 3
    assert streak(True, True, False, True, reset="released", others=[2]).length == 1
    rounds: set[int] = set()
    first, second = Streak("released", rounds), Streak("released", rounds)
    for one, other in ((True, False), (False, False), (False, True)):
        first.note(one)
        second.note(other)
    assert (first.length, second.length) == (0, 1)


@pytest.mark.parametrize("root, tools, chains", [(0.3, 0.3, 9), (1.2, 0.2, 10), (0.1, 1.5, 6), (99, 0, 16), (0, 99, 1)])
def test_the_number_of_starting_chains(root, tools, chains):
    assert starting_chains(16, root, tools) == chains


# ---- the tree --------------------------------------------------------------------------------------------------------


def test_branches_carry_their_streak():
    """With draws that always branch the streak is the number of rounds so far; it may forbid the next branch."""

    def answer(prompt: str, sampling) -> str:
        return "left"

    graph = grow(answer, n=5, initial_rollouts=1, branch_probability=0.0, beam_size=2)
    assert [e.decision.get("streak") for e in graph.episodes] == [None, 0, 1, 1, 2]
    assert [e.source for e in graph.episodes] == [-1, 0, 0, 1, 0]
    # p_b = 0.96 and factor 1 - 0.05: a draw would have to be 1.01 to branch twice in a row
    for seed in range(6):
        graph = grow(answer, n=9, initial_rollouts=1, branch_probability=0.96, penalty=0.05, seed=seed)
        assert {e.decision["streak"] for e in graph.episodes if e.source >= 0} <= {0}


def test_the_probe_decides_how_many_chains_start_and_trains_nothing():
    """The root says 2 tokens; the turns of the probe say 2, 4, 2 and 2."""

    def answer(prompt: str, sampling) -> str:
        return "right" if prompt.count("<act>") != 2 else "left and right"

    graph = grow(answer, n=6, dynamic=True, sensitivity=10.0, branch_probability=1.0, environment=Corridor)
    root, probe = graph.episodes[:2]
    assert (root.status, root.error, probe.status) == ("pruned", "probe", "finished")
    assert not root.trained and not probe.trained and not any(n.trained for n in graph.nodes if n.episode < 2)
    tools = (2 + 4 + 2 + 2) / 4 * UNIT
    expected = starting_chains(6, 2 * UNIT, tools, 10.0)
    assert 1 < expected < 4
    found = {name: probe.decision[name] for name in ("root_entropy", "tool_entropy", "chains")}
    assert found == pytest.approx({"root_entropy": 2 * UNIT, "tool_entropy": tools, "chains": expected})
    assert [e.decision["reason"] for e in graph.episodes[2:]].count("initial") == expected
    leaves = [e for e in graph.complete() if e.trained]
    assert len(leaves) == 6 and not graph.short
    rows = graph_rows(graph, lambda node: True)
    assert {row.episode for row in rows} <= {e.id for e in leaves}
    table = build_table([graph])
    assert table["trained"].sum() == sum(n.trained for n in graph.nodes)
    assert table["episodes.trained"].tolist() == [e.trained for e in graph.complete()]


def test_the_root_is_cut_short():
    def answer(prompt: str, sampling) -> str:
        return " ".join(["right"] * 9)

    graph = grow(answer, n=4, dynamic=True, root_tokens=3)
    assert graph.nodes[0].partial and len(graph.nodes[0].action) == 3
    assert graph.episodes[1].decision["root_entropy"] == pytest.approx(3 * UNIT)


def test_a_lost_probe_leaves_the_fixed_number():
    graph = grow(lambda prompt, sampling: "jump", n=5, dynamic=True, initial_rollouts=3, environment=Trap)
    assert graph.counts["probes_lost"] == 1 and graph.short
    assert [e.decision["reason"] for e in graph.episodes] == ["root", "probe", *["initial"] * 3, "fresh", "fresh"]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 50), st.integers(1, 7), st.booleans(), st.sampled_from(["sane", "released"]),
    st.sampled_from([{}, {"turns": 9}, {"tokens": 30}, {"environment_calls": 7}, {"leaves": 3}]),
)  # fmt: skip
def test_faults_and_budgets_cost_their_own_chains(seed, n, dynamic, reset, limits):
    options = {"dynamic": dynamic, "reset": reset, "initial_rollouts": 2, "environment": Trap}
    graph = grow(n=n, seed=seed, budget=BudgetOptions(**limits), **options)
    leaves = [e for e in graph.complete() if e.trained]
    assert len(leaves) <= n and graph.short == (len(leaves) < n)
    for name, (used, most) in graph.budget.items():
        assert used <= most, name


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_tree_is_repeatable_also_within_budgets(dynamic):
    options = {"initial_rollouts": 2, "beam_size": 3, "dynamic": dynamic}
    assert grow(n=7, seed=4, **options).counts["forks"] > 0
    check_repeatable(lambda: aepo(**options), answer=wander, n=7, seed=4, limits=SHORT)
    check_budgets(lambda: aepo(**options), n=6, limits=SHORT)


def test_a_group_smaller_than_its_start_is_refused_unless_a_probe_decides():
    with pytest.raises(RecipeError, match=r"the aepo sampler starts 6 chains.* got 4"):
        SAMPLER.episodes(build_options(SAMPLER, {}), 4)
    assert SAMPLER.episodes(build_options(SAMPLER, {"dynamic": True}), 4) == 4
    for bad in ({"penalty": 2.0}, {"root_tokens": 0}, {"reset": "never"}):
        with pytest.raises(RecipeError, match=next(iter(bad))):
            build_options(SAMPLER, bad)
