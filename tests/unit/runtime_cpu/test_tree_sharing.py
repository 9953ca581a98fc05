"""A tree of requests computes each of its tokens once: the engine's counters against the unique tokens of the tree."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.small_models import VOCABULARY, Harness, build_model, random_prompts
from verl_hier.runtime_cpu.generation.engine import Counters
from verl_hier.runtime_cpu.generation.request import Request

MOST = 1.05
"""What may be computed, as a multiple of the unique tokens."""


def unique(sequences: Iterable[list[int]]) -> int:
    """Nodes of the prefix tree of token sequences: at most what the tree of their requests stores."""
    return len({tuple(tokens[: i + 1]) for tokens in sequences for i in range(len(tokens))})


def computed(counters: Counters) -> int:
    return counters.prefill_tokens + counters.decode_tokens


def ask(h: Harness, prompts: list[list[int]], max_tokens: int, seed: int = 0) -> list[Request]:
    """Ask all prompts at once; returns the finished requests."""
    first = h.engine.counters.requests
    asked = [h.add(str(first + i), p, seed=seed + first + i, max_tokens=max_tokens) for i, p in enumerate(prompts)]
    h.run()
    return asked


def test_equal_prompts_and_two_levels_of_branches(harness):
    h = harness()
    root = random_prompts(1, 40, 41)[0]
    trunk = ask(h, [root] * 8, max_tokens=12)
    assert len({tuple(r.output) for r in trunk}) == 8
    # Three candidates after each observation, then two after each of those.
    first = ask(h, [[*r.tokens, 1, 2, 3, 4, 5] for r in trunk for _ in range(3)], max_tokens=6)
    second = ask(h, [[*r.tokens, 7, 8] for r in first for _ in range(2)], max_tokens=4)
    everything = [*trunk, *first, *second]
    # Two samples may agree for a while; they are computed apart, and a tree stores them apart.
    tokens = 40 + len(trunk) * (12 + 5) + len(first) * (6 + 2) + len(second) * 4
    # The last token of a leaf is sampled and never computed.
    assert computed(h.engine.counters) <= tokens - len(second)
    assert computed(h.engine.counters) <= MOST * unique(r.tokens for r in everything)
    fresh = harness(prefix_capacity=0)
    for i, request in enumerate(everything):
        prompt = request.tokens[: request.prompt_length]
        alone = fresh.add(str(i), prompt, seed=int(request.request_id), max_tokens=request.params.max_tokens)
        fresh.run()
        assert alone.output == request.output


def test_branches_inside_of_a_turn(harness):
    """Their last token was computed while it was generated, without logits that are kept: one position a fork."""
    h = harness()
    root = random_prompts(1, 40, 41)[0]
    trunk = ask(h, [root] * 4, max_tokens=40)
    before = computed(h.engine.counters)
    cuts = [r.tokens[: 40 + cut] for r in trunk for cut in (7, 19, 33)]
    branches = ask(h, [cut for cut in cuts for _ in range(3)], max_tokens=10)
    assert computed(h.engine.counters) - before == len(cuts) + len(branches) * 9
    # A second fork at the same place finds the logits too.
    ask(h, cuts, max_tokens=1)
    assert computed(h.engine.counters) - before == len(cuts) + len(branches) * 9
    assert computed(h.engine.counters) <= MOST * unique(r.tokens for r in (*trunk, *branches))


def test_segments_go_on_where_the_last_one_ended(harness):
    """Turns of a fixed length: the token that ends one is computed by the next."""
    h = harness()
    leaves = ask(h, random_prompts(2, 20, 21), max_tokens=8)
    for _ in range(3):
        leaves = ask(h, [r.tokens for r in leaves for _ in range(2)], max_tokens=8)
    assert computed(h.engine.counters) <= unique(r.tokens for r in h.finished.values())


@pytest.mark.parametrize("letters", [2, 5, VOCABULARY])
def test_prompts_that_part_soon_after_their_common_beginning(harness, letters):
    """Deep prefix trees: with two letters 60 prompts part token by token."""
    h = harness()
    rng = random.Random(letters)
    common = random_prompts(1, 40, 41)[0]
    ask(h, [[*common, *(rng.randrange(letters) for _ in range(15))] for _ in range(60)], max_tokens=1)
    assert computed(h.engine.counters) <= MOST * unique(r.tokens[:-1] for r in h.finished.values())


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_trees(data):
    h = Harness(build_model(), prefix_capacity=10**6)
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    prompts = random_prompts(data.draw(st.integers(1, 3)), 10, 40, seed=rng.randrange(2**31))
    ask(h, [p for p in prompts for _ in range(rng.randrange(1, 5))], max_tokens=rng.randrange(10, 25))
    inside = 0
    for _ in range(data.draw(st.integers(1, 4))):
        parents = rng.choices(list(h.finished.values()), k=rng.randrange(1, 6))
        asked: list[list[int]] = []
        for parent in parents:
            cut = rng.choice([len(parent.tokens), rng.randrange(parent.prompt_length, len(parent.tokens))])
            observation = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(0, 6))]
            inside += not observation
            asked += [[*parent.tokens[:cut], *observation]] * rng.randrange(1, 4)
        for prompt in asked:
            h.add(str(h.engine.counters.requests), prompt, seed=rng.randrange(2**31), max_tokens=rng.randrange(1, 25))
            if rng.random() < 0.5:
                h.engine.step()
        h.run()
    assert computed(h.engine.counters) <= MOST * unique(r.tokens for r in h.finished.values()) + inside
