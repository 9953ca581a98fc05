"""The ARPO sampler: numbers of the paper's rule, a tree worked out by hand, faults, budgets, repeatability."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.host.options import build_options
from verl_hier.rollout import Generation, Limits
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.testing.rollout import ScriptedPolicy
from verl_hier_plugins.samplers.arpo import ARPO, ChainOptions, Rising, hier_samplers, step_entropy

SAMPLER = hier_samplers()

# A turn has log p = -1 a token in the scripted policy, so its step entropy is its number of tokens over ln 1000.
UNIT = 1 / math.log(1000)


SHORT = Limits(max_turns=9)


def wander(prompt: str, sampling) -> str:
    """Turns of 2 and 4 tokens, some of which lose their world."""
    return random.Random(sampling.seed).choice(["right", "right", "right right right", "left", "jump"])


def arpo(**options) -> ARPO:
    return ARPO(ChainOptions(**options))


def grow(answer=wander, **changes):
    """A rollout; what is an option goes to the sampler."""
    options = {name: changes.pop(name) for name in list(changes) if name in ChainOptions.__dataclass_fields__}
    return roll(arpo(**options), answer=answer, **{"environment": lambda: Trap(4), "limits": SHORT, **changes})


# ---- the rule --------------------------------------------------------------------------------------------------------


def test_the_step_entropy_is_a_sum_over_the_first_positions():
    nats = -sum(p * math.log(p) for p in (0.5, 0.25, 0.125, 0.0625))
    assert step_entropy([nats], 151936) == pytest.approx(0.094405, abs=1e-6)
    assert step_entropy([1.0] * 30, 1000) == pytest.approx(20 * UNIT)
    assert step_entropy([1.0, 2.0, 4.0], 1000, positions=2) == pytest.approx(3 * UNIT)
    with pytest.raises(ValueError, match="vocabulary"):
        step_entropy([1.0], 0)


@pytest.mark.parametrize("change, probability", [(-0.4, 0.42), (0.0, 0.5), (0.3, 0.56), (1.0, 0.7), (9.0, 1.0)])
def test_the_probability_of_a_branch(change, probability):
    assert Rising(0.5, 0.2).probability(change) == pytest.approx(probability)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 2), st.floats(-3, 3))
def test_the_probability_is_the_share_of_the_draws_that_branch(base, weight, change):
    rule, steps = Rising(base, weight), 200
    share = sum(rule.branches((i + 0.5) / steps, change) for i in range(steps)) / steps
    assert share == pytest.approx(rule.probability(change), abs=1.5 / steps)


# ---- the tree --------------------------------------------------------------------------------------------------------


def by_turn(*turns: str):
    """Each chain says these things in turn, told by how often it was asked."""

    def answer(prompt: str, sampling) -> str:
        return turns[prompt.count("<act>") - 1]

    return answer


def test_a_tree_worked_out_by_hand():
    """p_b = 0 and a large weight: a turn that is longer than the chain's first one branches for sure, others never.

    The trunk says 2, 4, 2 and 5 tokens, so it branches after its second turn. The branch takes its first measure there,
    from its own first turn of 2 tokens, and branches after its second one. Then all four places but one are taken.
    """
    turns = by_turn("right", "right now please", "right", "right for the last time", "right", "right")
    graph = grow(turns, n=4, initial_rollouts=1, beam_size=2, branch_probability=0.0, entropy_weight=1e6, seed=3)
    assert [e.source for e in graph.episodes] == [-1, 0, 0, 1]
    assert [e.shared for e in graph.episodes] == [0, 2, 4, 4]
    assert [e.decision["reason"] for e in graph.episodes] == ["initial", "branch", "branch", "branch"]
    rise = [e.decision["entropy_change"] for e in graph.episodes[1:]]
    assert rise == pytest.approx([2 * UNIT, 4 * UNIT, 4 * UNIT])
    assert all(e.decision["probability"] == 1.0 for e in graph.episodes[1:])
    trunk = [graph.nodes[i] for i in graph.path(0)]
    assert [n.decision["step_entropy"] for n in trunk] == pytest.approx([x * UNIT for x in (2, 4, 2, 6, 2, 2)])
    assert trunk[1].decision["draws"] == [graph.episodes[1].decision["draw"]]
    assert not graph.short and graph.counts["forks"] == 3
    own = [n.decision for n in graph.nodes if n.episode == 1]
    assert own[0]["entropy_change"] == 0.0 and own[0]["reason"] == "branch"


def test_a_chain_may_get_several_branches_and_room_ends_it():
    turns = by_turn("left", "right now please", "right", "right", "right", "right")
    options = {"initial_rollouts": 2, "branch_probability": 0.0, "entropy_weight": 1e6, "seed": 3}
    graph = grow(turns, n=6, beam_size=4, **options)
    assert [(e.source, e.shared) for e in graph.episodes] == [(-1, 0), (-1, 0), (0, 2), (0, 2), (0, 2), (1, 2)]
    assert [len(n.decision.get("draws", [])) for n in graph.nodes if n.turn == 1 and n.episode < 2] == [3, 1]


def test_fresh_chains_fill_the_group_one_after_the_other():
    graph = grow(by_turn("right"), n=4, initial_rollouts=2, environment=lambda: Corridor(1))
    assert [e.decision["reason"] for e in graph.episodes] == ["initial", "initial", "fresh", "fresh"]
    assert [e.tree for e in graph.episodes] == [0, 1, 2, 3] and graph.counts["fresh_chains"] == 2
    assert graph.counts.get("branch_draws", 0) == 0 and not graph.short


def test_the_turn_limit_makes_no_copies():
    """A chain that may make no further turn looks alive; what is forked from it is given up and leaves its room."""
    options = {"n": 6, "initial_rollouts": 2, "branch_probability": 1.0, "limits": Limits(max_turns=1)}
    graph = grow(by_turn("left", "left"), **options)
    paths = [tuple(graph.path(e.id)) for e in graph.complete()]
    assert len(paths) == len(set(paths)) == 6 and not graph.short
    assert graph.counts["idle_forks"] == sum(e.error == "idle" for e in graph.episodes) > 0


# ---- faults, budgets, repeatability ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 50), st.integers(1, 7), st.integers(1, 7), st.integers(1, 4),
    st.sampled_from([{}, {"turns": 9}, {"tokens": 30}, {"environment_calls": 7}, {"leaves": 3}]),
)  # fmt: skip
def test_faults_and_budgets_cost_their_own_chains(seed, n, initial, beam, limits):
    graph = grow(n=n, initial_rollouts=initial, beam_size=beam, seed=seed, budget=BudgetOptions(**limits))
    complete = list(graph.complete())
    assert len(complete) <= n and graph.short == (len(complete) < n)
    failed = sum(e.status == "failed" for e in graph.episodes)
    cut = sum(e.status == "pruned" for e in graph.episodes)
    assert failed == graph.counts.get("failed_raised", 0)
    if not limits:
        assert len(complete) == n - failed
        assert cut == graph.counts.get("idle_forks", 0)
    for name, (used, most) in graph.budget.items():
        assert used <= most, name


def test_budgets_hold_and_the_tree_stays_repeatable():
    check_budgets(lambda: arpo(initial_rollouts=2, beam_size=3), n=6, limits=SHORT)


def test_a_budget_of_leaves_is_a_smaller_group():
    graph = grow(by_turn(*["right"] * 4), n=6, initial_rollouts=2, budget=BudgetOptions(leaves=4))
    assert len(list(graph.complete())) == 4 and graph.short


def test_the_tree_depends_on_the_seed_alone_and_can_be_made_again():
    options = {"initial_rollouts": 2, "beam_size": 3}
    trees = [grow(n=6, seed=seed, **options).to_dict()["episodes"] for seed in (1, 2)]
    assert trees[0] != trees[1]
    for changes in ({}, {"entropy": EntropyOptions("prefill")}, {"budget": BudgetOptions(tokens=40)}):
        check_repeatable(lambda: arpo(**options), answer=wander, n=6, limits=SHORT, **changes)


class Silent(ScriptedPolicy):
    """Keeps its log-probs to itself."""

    async def generate(self, prompt, sampling, conversation) -> Generation:
        return Generation((await super().generate(prompt, sampling, conversation)).token_ids, [])


def test_no_log_probs_is_a_sentence():
    with pytest.raises(RolloutError, match="calculate_log_probs: true"):
        grow(by_turn(*["right"] * 4), n=2, initial_rollouts=1, policy=Silent)


def test_a_group_smaller_than_its_start_is_refused():
    options = build_options(SAMPLER, {"initial_rollouts": 4})
    assert SAMPLER.episodes(options, 4) == 4
    with pytest.raises(RecipeError, match=r"rollout\.n: .* n >= 4; got 3.*initial_rollouts"):
        SAMPLER.episodes(options, 3)
    for bad in ({"beam_size": 0}, {"branch_probability": 1.5}, {"initial_rollouts": 0}, {"entropy_positions": 0}):
        with pytest.raises(RecipeError, match=next(iter(bad))):
            build_options(SAMPLER, bad)
