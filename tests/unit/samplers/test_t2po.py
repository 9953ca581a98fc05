"""Turns that are sampled again while their uncertainty stays what it was."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.fixtures.sampler_cases import BUDGETS, Steady, check_budgets, check_repeatable, roll, spec
from verl_hier.errors import RecipeError
from verl_hier.host.specs import build_options
from verl_hier_plugins.samplers.t2po import T2PO, T2POOptions, stalls, uncertainty


def make(**options):
    return lambda: T2PO(T2POOptions(**options))


class Moody(Steady):
    """Log-probs and alternatives that differ from token to token."""

    async def generate(self, prompt, sampling, conversation):
        answer = await super().generate(prompt, sampling, conversation)
        rng = random.Random(sampling.seed)
        logprobs = [math.log(rng.uniform(0.05, 0.95)) for _ in answer.token_ids]
        top = [
            [(token, p), (0, math.log(1 - math.exp(p)))] for token, p in zip(answer.token_ids, logprobs, strict=True)
        ]
        return replace(answer, logprobs=logprobs, top_logprobs=top if sampling.top_logprobs else [])


def test_uncertainty_is_a_geometric_mean_of_scaled_entropies_and_confidences():
    tokens = [(0.0, 4.0), (2.0, 0.0), (1.0, 2.0)]
    # Scaled entropies 0, 1, 1/2; scaled confidences 1, 0, 1/2: all tokens have 0, 1, 1/2 whatever the weight.
    assert uncertainty(tokens, 2, 0.3) == pytest.approx(math.sqrt(0.5))
    assert uncertainty(tokens, 1, 0.3) == pytest.approx(0.5)
    assert uncertainty([(1.0, 1.0)], 1, 0.25) == pytest.approx(0.75) and uncertainty([], 0, 0.5) == 0


def test_equal_scores_do_not_stall():
    assert stalls(0.5, 0.4, 0.3) and not stalls(0.5, 0.5, 0.3) and not stalls(0.8, 0.5, 0.3)


def test_kept_turns_changed_enough_or_were_tried_often_enough():
    resampled = 0
    for seed in range(5):
        graph = roll(make()(), n=3, seed=seed, policy=Moody)
        assert len(list(graph.complete())) == 3 and not graph.short
        for episode in graph.complete():
            notes = [graph.nodes[number].decision for number in graph.path(episode.id)]
            assert notes[0]["tries"] == 0
            for before, now in pairwise(notes):
                stalled = stalls(now["uncertainty"], before["uncertainty"], 0.3)
                assert not stalled or now["tries"] == 2
        given_up = [e for e in graph.episodes if e.error == "resampled"]
        assert len(given_up) == graph.counts.get("resampled", 0)
        resampled += len(given_up)
    assert resampled > 10


def test_without_attempts_it_samples_independently():
    graph = roll(make(attempts=0)(), n=3, policy=Moody)
    assert len(graph.episodes) == 3 and all(e.source < 0 for e in graph.episodes)


def test_the_same_seed_makes_the_same_episodes_and_budgets_hold():
    check_repeatable(make(), n=3)
    check_budgets(make(), n=3)
    for budget in BUDGETS:
        first, again = (roll(make()(), n=3, policy=Moody, budget=budget).to_dict() for _ in range(2))
        assert first["nodes"] == again["nodes"] and first["episodes"] == again["episodes"]
        limit = budget.turns
        assert limit is None or len(first["nodes"]) <= limit


def test_options():
    registered = spec("t2po")
    assert registered.needs_top_logprobs and registered.needs_fork
    with pytest.raises(RecipeError, match=r"entropy_weight must be within \[0, 1\]"):
        build_options(registered, {"entropy_weight": 2.0})
    with pytest.raises(RecipeError, match="top at least 1"):
        build_options(registered, {"top": 0})
