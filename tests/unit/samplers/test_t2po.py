"""Turns that are sampled again while their uncertainty stays what it was."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.fixtures.sampler_cases import BUDGETS, Steady, check_budgets, check_repeatable, roll, spec
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier_plugins.samplers.t2po import T2PO, T2POOptions, stalls, stands_still, uncertainty
from verl_hier_plugins.workers.react import React, ReactOptions


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


WORKER = {"worker": lambda: React(ReactOptions(action_tag="action"))}


def think(prompt, sampling):
    """Eleven times the same word, unless the thought was closed."""
    said = prompt.rsplit("<act>", 1)[-1].split()
    if "</think>" in said:
        return " ".join(["<action>", "right", "</action>"][len(said) - said.index("</think>") - 1 :])
    return " ".join([*["<think>", *["hm"] * 11][len(said) :], "</think> <action> right </action>"])


def texts(graph):
    """What was said in each turn of the complete episodes."""
    said = {}
    for episode in graph.complete():
        for number in graph.path(episode.id):
            node = graph.nodes[number]
            said.setdefault((episode.id, node.turn), []).append(node.text)
    return [" ".join(" ".join(pieces).split()) for pieces in said.values()]


def test_a_thought_that_stands_still_is_closed_once():
    graph = roll(make(window=4, attempts=0)(), n=2, answer=think, policy=Steady, **WORKER)
    # The window is full with the fifth token, so the second piece of four ends the thought.
    assert texts(graph) == ["<think> hm hm hm hm hm hm hm </think> <action> right </action>"] * 8
    assert graph.counts["thoughts_closed"] == 8 and all(e.success for e in graph.complete())
    closed = [node for node in graph.nodes if node.decision.get("forced")]
    assert len(closed) == 8 and all(node.logprobs and len(node.logprobs) == len(node.action) for node in closed)
    loud = roll(make(window=4, least_token_change=0.02, attempts=0)(), n=2, answer=think, policy=Moody, **WORKER)
    assert "thoughts_closed" not in loud.counts
    assert texts(loud) == ["<think>" + " hm" * 11 + " </think> <action> right </action>"] * 8
    plain = roll(make(attempts=0)(), n=2, answer=think, policy=Steady, **WORKER)
    assert "thoughts_closed" not in plain.counts and texts(plain) == texts(loud)


def test_standing_still_is_a_small_mean_change():
    assert stands_still([0.0, 0.5, 0.51, 0.5], 2, 0.02) and not stands_still([0.0, 0.5, 0.51, 0.5], 3, 0.02)


def test_the_same_seed_makes_the_same_episodes_and_budgets_hold():
    check_repeatable(make(), n=3)
    check_repeatable(make(window=4), n=3, answer=think, **WORKER)
    check_budgets(make(), n=3)
    for budget in BUDGETS:
        first, again = (roll(make()(), n=3, policy=Moody, budget=budget).to_dict() for _ in range(2))
        assert first["nodes"] == again["nodes"] and first["episodes"] == again["episodes"]
        limit = budget.turns
        assert limit is None or len(first["nodes"]) <= limit


def test_options():
    registered = spec("t2po")
    assert registered.needs_top_logprobs and registered.needs_fork
    with pytest.raises(RecipeError, match="entropy_weight: must be from 0 to 1"):
        build_options(registered, {"entropy_weight": 2.0})
    with pytest.raises(RecipeError, match="top: must be at least 1"):
        build_options(registered, {"top": 0})
    with pytest.raises(RecipeError, match="window must be at least 2"):
        build_options(registered, {"window": 1})
    with pytest.raises(RecipeError, match="the text that opens one"):
        build_options(registered, {"thought": ["<think>"]})
    assert registered.needs("needs_scores", build_options(registered, {"window": 4}))
    assert not registered.needs("needs_scores", build_options(registered, {}))
