"""Pruning while episodes run: who is scored when, who stays, and scores of a user's own."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from tests.fixtures.random_policy import RandomPolicy, tokenizer
from tests.fixtures.sampler_cases import Steady, Trap, check_budgets, check_repeatable, parts, roll, spec, walk, wander
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.rollout import Generation
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.prune import Prune, PruneOptions, survivors


def make(**options):
    return lambda: Prune(PruneOptions(**options))


@pytest.mark.parametrize(
    "keep, balance, kept",
    [
        (4, 0.5, {0, 4, 1, 5}),
        (3, 0.5, {0, 4, 1}),  # one and a half are two
        (3, 1.0, {0, 4, 2}),
        (3, 0.0, {1, 5, 3}),
        (9, 0.5, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_the_best_and_the_worst_stay(keep, balance, kept):
    assert survivors([0.9, 0.1, 0.5, 0.4, 0.8, 0.2], keep, balance, range(6)) == kept


def test_equal_scores_stay_in_the_order_given():
    assert survivors([1.0] * 4, 2, 0.5, [2, 0, 3, 1]) == {2, 1}


@given(st.lists(st.integers(-3, 3), max_size=12), st.integers(1, 12), st.floats(0, 1), st.randoms())
def test_who_goes_stands_between_those_who_stay(scores, keep, balance, chance):
    order = list(range(len(scores)))
    chance.shuffle(order)
    kept = survivors(scores, keep, balance, order)
    assert len(kept) == min(keep, len(scores))
    gone = [scores[place] for place in order if place not in kept]
    if gone:
        above = sum(scores[place] >= max(gone) for place in kept)
        below = sum(scores[place] <= min(gone) for place in kept)
        best = int(balance * keep + 0.5)
        assert above >= best and below >= keep - best


def test_twice_as_many_start_and_those_in_the_middle_are_given_up():
    graph = roll(make(score="return")(), n=3, seed=3)
    assert len(graph.episodes) == 6 and not graph.short
    gone = [e for e in graph.episodes if e.status == "pruned"]
    assert {e.error for e in gone} == {"pruned_at_0"} and len(gone) == graph.counts["pruned_early"] == 3
    assert {len(graph.path(e.id)) for e in gone} == {2}, "scored after two turns"
    for episode in graph.episodes:
        first = sum(graph.nodes[i].reward for i in graph.path(episode.id)[:2])
        assert episode.decision["score_0"] == pytest.approx(first)
    scores = {e.id: e.decision["score_0"] for e in graph.episodes}
    assert len(set(scores.values())) > 1
    kept = sorted(scores[e.id] for e in graph.complete())
    for episode in gone:
        assert kept[0] <= scores[episode.id] <= kept[1], "two of the best stay, one of the worst"


def test_equal_parts_go_at_each_checkpoint():
    graph = roll(make(score="random", checkpoints=(1, 2, 3), start=1.75)(), n=4, seed=1)
    assert len(graph.episodes) == 7 and not graph.short
    gone = [e for e in graph.episodes if e.status == "pruned"]
    assert Counter((e.error, len(graph.path(e.id))) for e in gone) == {
        ("pruned_at_0", 1): 1,
        ("pruned_at_1", 2): 1,
        ("pruned_at_2", 3): 1,
    }
    assert [len([name for name in e.decision if name.startswith("score")]) for e in gone].count(1) == 1


def babbled(sampler, seed=0):
    return asyncio.run(
        roll_out_scripted(
            **parts(sampler, environment=lambda: Corridor(2)),
            answer=walk,
            policy=RandomPolicy,
            tokenizer=tokenizer(),
            seed=seed,
            n=3,
        )
    )[0]


def test_checkpoints_may_count_tokens_and_cut_turns():
    graph = babbled(make(unit="tokens", checkpoints=(3,))())
    gone = [e for e in graph.episodes if e.status == "pruned"]
    assert len(gone) == 3 and not graph.short
    assert {sum(len(graph.nodes[i].action) for i in graph.path(e.id)) for e in gone} == {3}
    assert any(node.partial for node in graph.nodes)


def test_confidence_is_the_mean_log_probability_of_the_tokens_so_far():
    graph = babbled(make(unit="tokens", checkpoints=(4,))(), seed=2)
    for episode in graph.episodes:
        logprobs = [p for i in graph.path(episode.id) for p in graph.nodes[i].logprobs]
        assert episode.decision["score_0"] == pytest.approx(sum(logprobs[:4]) / 4)


def last_number(episode):
    """A score of a user's own: the most promising is the latest one."""
    return episode.id


async def asked(episode):
    """A score that asks the policy."""
    scored = await episode.rollout.score(episode.rollout.graph.prompt(episode.path[-1]), [3, 4])
    return sum(scored.logprobs) - episode.id


def raising(episode):
    raise KeyError("no head")


def nothing(episode):
    return float("nan")


CONSTANT = 3


@pytest.mark.parametrize("name, kept", [("last_number", [4, 5]), ("asked", [0, 1])])
def test_a_score_of_ones_own(name, kept):
    graph = roll(make(score=f"{__name__}:{name}", balance=1.0, start=3.0)(), n=2)
    assert [e.id for e in graph.complete()] == kept


@pytest.mark.parametrize(
    "score, told",
    [
        ("confidnce", r"'confidnce' is not one of return, confidence, random \(did you mean 'confidence'\?\)"),
        ("nowhere.at_all:f", "module 'nowhere.at_all' cannot be imported: No module named 'nowhere'"),
        (f"{__name__}:last_numbr", r"has no 'last_numbr' \(did you mean 'last_number'\?\)"),
        (f"{__name__}:CONSTANT", "is a int and no function"),
        (":f", "names no function; write `package.module:function`"),
    ],
)
def test_a_score_that_is_not_there_is_refused_before_the_run(score, told):
    registered = spec("prune")
    with pytest.raises(RecipeError, match=f"hier.sampler.score: .*{told}"):
        registered.episodes(build_options(registered, {"score": score}), 4)


@pytest.mark.parametrize(
    "name, told", [("raising", "raised KeyError: 'no head' .*on episode 0"), ("nothing", "must be a finite number")]
)
def test_a_score_that_fails_stops_with_a_sentence(name, told):
    with pytest.raises(RecipeError, match=f"hier.sampler.score: the score .*{told}"):
        roll(make(score=f"{__name__}:{name}")(), n=2)


class Mute(Steady):
    """Says no log-probs."""

    async def generate(self, prompt, sampling, conversation) -> Generation:
        answer = await super().generate(prompt, sampling, conversation)
        return Generation(answer.token_ids, [], answer.stop_reason)


def test_confidence_without_log_probs_stops_with_a_sentence():
    with pytest.raises(RecipeError, match="`confidence` needs log-probs"):
        roll(make()(), n=2, policy=Mute)


def test_a_broken_world_costs_its_own_episode():
    graphs = [roll(make()(), answer=wander, n=3, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    lost = [graph for graph in graphs if any(e.status == "failed" for e in graph.episodes)]
    assert lost
    for graph in lost:
        failed = sum(e.status == "failed" for e in graph.episodes)
        given_up = graph.counts.get("pruned_early", 0)
        assert sum(1 for _ in graph.complete()) == 6 - failed - given_up >= 3 - failed


@pytest.mark.parametrize("score", ["return", "confidence", "random"])
def test_the_same_seed_makes_the_same_tree(score):
    check_repeatable(make(score=score, checkpoints=(1, 3)), n=3)


def test_the_same_seed_makes_the_same_pieces():
    check_repeatable(make(score="return", unit="tokens", checkpoints=(2, 5)), n=3)


def test_budgets():
    check_budgets(make(), n=3)
    graph = roll(make()(), n=4, budget=BudgetOptions(leaves=5))
    assert len(graph.episodes) == 5 and graph.counts["budget_skipped"] == 3 and not graph.short


def test_what_cannot_work_is_refused():
    registered = spec("prune")
    assert not registered.needs_fork and registered.episodes(build_options(registered, {}), 1) == 1
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n >= 1; got 0"):
        registered.episodes(build_options(registered, {}), 0)
    refusals = {
        "start must be above 1, got 1.0": {"start": 1},
        r"checkpoints must rise from at least 1, got \[\]": {"checkpoints": []},
        r"checkpoints must rise from at least 1, got \[4, 2\]": {"checkpoints": [4, 2]},
        "balance: must be from 0 to 1, got 2.0": {"balance": 2},
    }
    for told, options in refusals.items():
        with pytest.raises(RecipeError, match=told):
            build_options(registered, options)
