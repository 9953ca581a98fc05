"""Distributions, seeds and the deterministic mode."""

import pytest
import torch

from tests.fixtures.small_models import plain_log_probs, random_prompts
from verl_hier.runtime_cpu.generation.request import Request, SamplingParams, derive_seed, draws
from verl_hier.runtime_cpu.generation.sampling import sample

SAMPLES = 4000


def sampled_shares(logits: torch.Tensor, **params: object) -> torch.Tensor:
    """Relative frequencies [vocabulary] over SAMPLES requests with the same logits [vocabulary]."""
    requests = [
        Request(str(i), 1, [0], SamplingParams(max_tokens=5, **params), frozenset(), draws(i)) for i in range(SAMPLES)
    ]
    tokens = sample(logits.expand(SAMPLES, -1), requests, len(logits)).tokens
    return torch.bincount(torch.tensor(tokens), minlength=len(logits)) / SAMPLES


def expected_shares(logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> torch.Tensor:
    """The same distribution by transformers' own logits processors."""
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = (logits / temperature).unsqueeze(0)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return torch.softmax(scores[0], dim=-1)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 4},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 6, "top_p": 0.8, "temperature": 1.3},
        {"min_p": 0.05, "top_k": 7, "top_p": 0.9, "temperature": 0.9},
    ],
)
def test_distributions(params):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 2
    shares, expected = sampled_shares(logits, **params), expected_shares(logits, **params)
    assert torch.equal(shares > 0, (expected > 0) & (shares > 0)), "a token outside of the support was drawn"
    # Four standard deviations of a binomial share.
    assert bool(((shares - expected).abs() <= 4 * (expected * (1 - expected) / SAMPLES).sqrt() + 1e-6).all())


def test_repetition_penalty_is_that_of_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(2)) * 2
    seen = [1, 4, 7]
    penalised = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([seen]), logits)
    best = int(penalised.argmax())
    params = SamplingParams(max_tokens=5, temperature=0.0, repetition_penalty=1.5)
    assert sample(logits, [Request("x", 3, seen, params, frozenset(), draws(0))], 12).tokens == [best]


def test_truncation_is_not_part_of_the_reported_log_prob():
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3))
    params = SamplingParams(max_tokens=5, top_k=2, temperature=0.5)
    result = sample(logits, [Request("x", 1, [0], params, frozenset(), draws(0))], 12)
    expected = torch.log_softmax(logits / 0.5, dim=-1)[0, result.tokens[0]]
    assert result.log_probs[0] == pytest.approx(float(expected), abs=1e-6)


def test_seeds(harness):
    def run(seed: int) -> list[int]:
        h = harness()
        h.add("x", [1, 2, 3], seed=seed, max_tokens=20, temperature=2.0)
        return h.run()["x"].output

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_derived_seeds_depend_on_prompt_version_base_and_occurrence_alone():
    seed = derive_seed(42, 7, [1, 2, 3], 0)
    assert seed == derive_seed(42, 7, (1, 2, 3), 0)
    others = {
        derive_seed(42, 8, [1, 2, 3], 0),
        derive_seed(43, 7, [1, 2, 3], 0),
        derive_seed(42, 7, [1, 2], 0),
        derive_seed(42, 7, [1, 2, 3], 1),
    }
    assert len(others | {seed}) == 5


@pytest.mark.parametrize("companions", [1, 7, 40])
def test_deterministic_mode_ignores_companions_exactly(harness, companions):
    prompts = random_prompts(companions + 1, 3, 60, seed=9)

    def run(others: list[list[int]], late: int) -> Request:
        h = harness(deterministic=True, max_sequences=16)
        for i, prompt in enumerate(others):
            h.add(f"other {i}", prompt, seed=i, max_tokens=3 + i % 30)
        for _ in range(late):
            h.engine.step()
        request = h.add("x", prompts[0], seed=77, max_tokens=40, temperature=1.3)
        h.run()
        return request

    alone, crowded = run([], 0), run([*prompts[1:], prompts[0]], 5)
    assert alone.output == crowded.output
    assert alone.log_probs == crowded.log_probs, "must be equal to the last bit"
    assert crowded.cached_tokens == 0


def test_deterministic_mode_is_right(harness):
    h = harness(deterministic=True)
    request = h.add("x", random_prompts(1)[0], seed=3, max_tokens=20)
    h.run()
    expected = plain_log_probs(h.model, request.tokens)[request.prompt_length - 1 :]
    chosen = expected.gather(1, torch.tensor(request.output).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(request.log_probs), chosen, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"beam_width": 3}, "beam_width"),
        ({"top_p": 0.0}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "one sample"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 2}, "min_p"),
    ],
)
def test_bad_parameters_are_refused(raw, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams.parse(raw, max_tokens=4, defaults={})


def test_parameters_are_read_as_vllm_reads_them():
    raw = {"temperature": 0.5, "top_k": -1, "stop": "END", "stop_token_ids": [3], "logprobs": True, "detokenize": True}
    params = SamplingParams.parse(raw, max_tokens=4, defaults={"ignore_eos": True, "temperature": 1.0})
    assert (params.temperature, params.stop, params.stop_token_ids) == (0.5, ("END",), frozenset({3}))
    assert (params.logprobs, params.ignore_eos, params.max_tokens) == (0, True, 4)
    assert SamplingParams.parse({"logprobs": False}, 4, {}).logprobs is None
    assert SamplingParams.parse({"logprobs": 5}, 4, {}).logprobs == 5
