"""Reuse of keys and values: what is found, what it saves, and that it changes nothing."""

import random

import torch

from tests.fixtures.small_models import random_prompts
from verl_hier.runtime_cpu.generation.prefix_cache import LogitsCache, PrefixCache, common_prefix


def test_tree_against_a_set_of_prefixes():
    """Random insertions and look-ups, compared with a plain list of all known prefixes."""
    rng = random.Random(0)
    cache, known = PrefixCache(capacity=10**6), [[]]
    for _ in range(300):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
        start = cache.match_length(tokens)
        assert start == max(common_prefix(tokens, other) for other in known)
        values = torch.tensor(tokens, dtype=torch.float32).view(1, -1, 1, 1)
        cache.insert(tokens, values[:, start:], -values[:, start:], start)
        known.append(tokens)
        runs = cache.lookup(tokens)
        assert torch.cat([keys for keys, _ in runs], dim=1).flatten().tolist() == tokens
        assert torch.cat([values for _, values in runs], dim=1).flatten().tolist() == [-t for t in tokens]
    assert cache.tokens == len({tuple(k[: i + 1]) for k in known for i in range(len(k))})


def test_the_least_recently_used_goes_first():
    cache = PrefixCache(capacity=20)

    def insert(tokens: list[int]) -> None:
        start = cache.match_length(tokens)
        values = torch.zeros(1, len(tokens) - start, 1, 1)
        cache.insert(tokens, values, values, start)

    insert([1] * 8)
    insert([2] * 8)
    cache.lookup([1] * 8)
    insert([3] * 8)
    assert cache.tokens <= 20
    assert cache.match_length([1] * 8) == 8
    assert cache.match_length([2] * 8) == 0
    assert cache.match_length([3] * 8) == 8


def test_logits_are_copies_within_their_bound():
    cache = LogitsCache(max_bytes=3 * 40)
    rows = torch.arange(50, dtype=torch.float32).view(5, 10)
    for i in range(3):
        cache.put([i], rows[i])
    assert torch.equal(cache.get([0]), torch.arange(10.0))
    cache.put([3], rows[3])
    rows.zero_()
    assert cache.bytes == 120
    assert cache.get([1]) is None and cache.get([0])[-1] == 9 and cache.get([3])[0] == 30
    assert cache.get([3, 0]) is None
    cache.put([4], torch.zeros(31))
    assert cache.get([4]) is None and cache.bytes == 120


def test_a_second_turn_computes_only_what_is_new(harness):
    h = harness()
    prompt = random_prompts(1, 30, 31)[0]
    first = h.add("first", prompt, seed=1, max_tokens=6)
    h.run()
    follow = [*first.tokens, 3, 4, 5]
    second = h.add("second", follow, seed=2, max_tokens=6)
    h.run()
    # Everything but the last generated token, whose keys and values were never needed.
    assert second.cached_tokens == len(first.tokens) - 1
    assert h.engine.counters.prefill_tokens == len(prompt) + 4
    assert h.engine.counters.cached_tokens == len(first.tokens) - 1
    fresh = harness(prefix_capacity=0)
    expected = fresh.add("x", follow, seed=2, max_tokens=6)
    fresh.run()
    assert expected.output == second.output and expected.cached_tokens == 0
    torch.testing.assert_close(expected.log_probs, second.log_probs, atol=1e-5, rtol=0)


def test_a_group_computes_its_prompt_once(harness):
    h = harness()
    prompts = random_prompts(3, 40, 41)
    for i in range(24):
        h.add(str(i), prompts[i % 3], seed=i, max_tokens=5)
    finished = h.run()
    assert h.engine.counters.prefill_tokens == 3 * 40
    assert sorted(r.cached_tokens for r in finished.values()) == [0] * 3 + [40] * 21
    assert len({tuple(r.output) for r in finished.values()}) > 3


def test_running_requests_share_their_prompt(harness):
    h = harness()
    prompt = random_prompts(1, 40, 41)[0]
    h.add("runs", prompt, seed=1, max_tokens=50)
    h.engine.step()
    late = h.add("late", prompt, seed=2, max_tokens=5)
    h.run()
    assert late.cached_tokens == 40


def test_the_bound_holds_and_results_stay_right(harness):
    h = harness(prefix_capacity=100)
    prompts = random_prompts(30, 20, 40, seed=4)
    for i, prompt in enumerate(prompts):
        h.add(str(i), prompt, seed=i, max_tokens=6)
        h.run()
        assert h.engine.cached_tokens <= 100
    fresh = harness(prefix_capacity=0)
    for i, prompt in enumerate(prompts):
        fresh.add(str(i), prompt, seed=i, max_tokens=6)
    fresh.run()
    assert {k: r.output for k, r in h.finished.items()} == {k: r.output for k, r in fresh.finished.items()}


def test_dropping_the_caches_forgets(harness):
    h = harness()
    prompt = random_prompts(1, 40, 41)[0]
    h.add("a", prompt, max_tokens=5)
    h.run()
    h.engine.drop_caches()
    again = h.add("b", prompt, max_tokens=5)
    h.run()
    assert again.cached_tokens == 0
