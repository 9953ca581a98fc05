"""The engine against transformers' own generation and plain forward passes."""

import pytest
import torch

from tests.fixtures.small_models import VOCABULARY, build_model, plain_log_probs, random_prompts
from verl_hier.runtime_cpu.generation.model import SlotModel, UnsupportedModelError

KINDS = ["qwen2", "llama", "gpt2", "qwen3", "mixtral", "opt"]


def transformers_greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> list[int]:
    input_ids = torch.tensor([prompt])
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers(harness, kind):
    h = harness(kind)
    prompts = random_prompts(9)
    for i, prompt in enumerate(prompts):
        h.add(str(i), prompt, max_tokens=12, temperature=0.0)
    finished = h.run()
    for i, prompt in enumerate(prompts):
        assert finished[str(i)].output == transformers_greedy(h.model, prompt, 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_forward_pass(harness, kind, temperature):
    h = harness(kind)
    for i, prompt in enumerate(random_prompts(9)):
        h.add(str(i), prompt, seed=i, max_tokens=15, temperature=temperature, top_p=0.9 if i % 2 else 1.0)
    for request in h.run().values():
        expected = plain_log_probs(h.model, request.tokens, temperature)[request.prompt_length - 1 :]
        chosen = expected.gather(1, torch.tensor(request.output).unsqueeze(1)).squeeze(1)
        # The relative part is for experts: their sums round differently with the batch.
        torch.testing.assert_close(torch.tensor(request.log_probs), chosen, atol=1e-5, rtol=1e-5)


def test_requests_join_and_leave_between_steps(harness):
    """Requests of different lengths, added while others run, get what they would get alone."""
    prompts = random_prompts(12, seed=3)
    lengths = [1 + 3 * i % 11 for i in range(12)]
    h = harness(max_sequences=5)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        h.add(str(i), prompt, seed=i, max_tokens=length)
        h.engine.step()
    h.run()
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        alone = harness(prefix_capacity=0)
        alone.add("x", prompt, seed=i, max_tokens=length)
        assert alone.run()["x"].output == h.finished[str(i)].output


def test_long_prompts_are_computed_in_chunks(harness):
    prompt = random_prompts(1, 100, 101)[0]
    h, whole = harness(max_batched_tokens=16), harness()
    for one in (h, whole):
        one.add("x", prompt, max_tokens=8, temperature=0.0)
        one.run()
    assert h.finished["x"].output == whole.finished["x"].output
    torch.testing.assert_close(h.finished["x"].log_probs, whole.finished["x"].log_probs, atol=1e-5, rtol=0)


def test_stop_tokens_end_a_request_and_are_part_of_it(harness):
    h = harness()
    free = h.add("free", [1, 2, 3], max_tokens=20, temperature=0.0)
    h.run()
    stop = free.output[4]
    stopped = h.add("stopped", [1, 2, 3], stop_ids=(stop,), max_tokens=20, temperature=0.0)
    h.run()
    first = free.output.index(stop)
    assert stopped.output == free.output[: first + 1]
    assert (stopped.finish_reason, stopped.matched_stop) == ("stop", stop)
    assert (free.finish_reason, free.matched_stop) == ("length", None)


def test_min_tokens_holds_stops_back(harness):
    h = harness()
    every = tuple(range(VOCABULARY - 1))
    request = h.add("x", [1, 2, 3], seed=1, stop_ids=every, max_tokens=20, min_tokens=5)
    h.run()
    # Until then only the one token that does not stop may be chosen.
    assert request.output[:5] == [VOCABULARY - 1] * 5


class LetterTokenizer:
    """Token i is the i-th letter of the alphabet, again and again."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(ord("a") + t % 26) for t in token_ids)


def test_stop_strings_end_a_request_with_the_token_that_completes_them(harness):
    h = harness(tokenizer=LetterTokenizer())
    free = h.add("free", [1, 2, 3], max_tokens=30, temperature=0.0)
    h.run()
    text = LetterTokenizer().decode(free.output, skip_special_tokens=True)
    stop = text[6:9]
    stopped = h.add("stopped", [1, 2, 3], max_tokens=30, temperature=0.0, stop=(stop, "not there"))
    h.run()
    assert stopped.output == free.output[: text.index(stop) + 3]
    assert (stopped.finish_reason, stopped.matched_stop) == ("stop", stop)


def test_stop_strings_need_a_tokenizer(harness):
    with pytest.raises(ValueError, match="tokenizer"):
        harness().add("x", [1], max_tokens=3, stop=("a",))


def test_abort_returns_what_there_is_and_frees_the_slot(harness):
    h = harness()
    for i in range(3):
        h.add(str(i), [i, i + 1], seed=i, max_tokens=50)
    for _ in range(4):
        h.engine.step()
    assert h.engine.abort({"1"}) == ["1"]
    assert h.finished["1"].finish_reason == "abort"
    assert h.finished["1"].output_length == 5  # one from the prompt, one a step
    h.add("late", [9, 9], max_tokens=50)
    assert set(h.engine.abort()) == {"0", "2", "late"}
    assert h.finished["late"].output == []
    assert not h.engine.has_work


def test_an_aborted_neighbour_changes_nothing(harness):
    def run(abort: bool) -> list[int]:
        h = harness()
        for i in range(3):
            h.add(str(i), random_prompts(3)[i], seed=i, max_tokens=20)
        for _ in range(3):
            h.engine.step()
        if abort:
            h.engine.abort({"0"})
        return h.run()["2"].output

    assert run(True) == run(False)


def test_dropping_the_caches_makes_running_requests_start_over(harness):
    def run(drop: bool):
        h = harness()
        request = h.add("x", [5, 6, 7], seed=2, max_tokens=20)
        for _ in range(4):
            h.engine.step()
        if drop:
            h.engine.drop_caches()
            assert h.engine.model.slots.keys.numel() == 0
        h.run()
        return request

    dropped, kept = run(True), run(False)
    assert dropped.output == kept.output
    assert (dropped.preempted, kept.preempted) == (1, 0)
    torch.testing.assert_close(dropped.log_probs, kept.log_probs, atol=1e-5, rtol=0)


def test_top_logprobs(harness):
    h = harness()
    request = h.add("x", [1, 2, 3, 4], seed=5, max_tokens=6, temperature=0.8, logprobs=4)
    h.add("y", [1, 2], seed=5, max_tokens=6, logprobs=2)
    h.run()
    expected = plain_log_probs(h.model, request.tokens, 0.8)[3:].topk(4, dim=-1)
    assert [[token for token, _ in position] for position in request.top_logprobs] == expected.indices.tolist()
    values = torch.tensor([[value for _, value in position] for position in request.top_logprobs])
    torch.testing.assert_close(values, expected.values, atol=1e-5, rtol=0)
    assert {len(position) for position in h.finished["y"].top_logprobs} == {2}


@pytest.mark.parametrize("count", [0, 3])
def test_prompt_logprobs_in_the_layout_of_verl(harness, count):
    h = harness()
    prompt = random_prompts(1, 20, 21)[0]
    h.add("fill the cache", prompt, max_tokens=2)
    h.run()
    request = h.add("x", prompt, max_tokens=2, prompt_logprobs=count)
    h.run()
    ids, values = request.prompt_logprobs
    log_probs = plain_log_probs(h.model, prompt)
    if count == 0:
        assert ids[:-1] == [[token] for token in prompt[1:]]
        expected = log_probs.gather(1, torch.tensor(prompt[1:]).unsqueeze(1))
    else:
        expected = log_probs.topk(count, dim=-1).values
    torch.testing.assert_close(torch.tensor(values[:-1]), expected, atol=1e-5, rtol=0)
    assert len(ids) == len(values) == len(prompt)
    own = log_probs.gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(request.prompt_token_logprobs), own, atol=1e-5, rtol=0)


@pytest.mark.parametrize("start", [0, 1, 2, 12, 19, 25])
def test_prompt_logprobs_from_a_token_on_reuse_what_comes_before(harness, start):
    h = harness()
    prompt = random_prompts(1, 20, 21)[0]
    h.add("fill the cache", prompt, max_tokens=2)
    h.run()
    h.engine.counters.prefill_tokens = 0
    request = h.add("x", prompt, max_tokens=1, prompt_logprobs=3, prompt_logprobs_start=start)
    h.run()
    ids, values = request.prompt_logprobs
    first = max(start, 1)
    expected = plain_log_probs(h.model, prompt)[first - 1 :].topk(3, dim=-1)
    assert ids[:-1] == expected.indices.tolist() and len(ids) == len(values) == max(len(prompt) - first, 0) + 1
    if start < len(prompt):
        torch.testing.assert_close(torch.tensor(values[:-1]), expected.values, atol=1e-5, rtol=0)
    assert len(request.prompt_token_logprobs) == len(ids) - 1
    assert h.engine.counters.prefill_tokens == len(prompt) - max(min(start, len(prompt)) - 1, 0)


@pytest.mark.parametrize("temperature", [0.3, 0.5, 1.0, 1.7])
def test_given_tokens_are_as_likely_as_when_they_are_sampled(harness, temperature):
    h = harness()
    prompt = random_prompts(1, 8, 9)[0]
    sampled = h.add("sampled", prompt, seed=3, max_tokens=12, temperature=temperature, logprobs=0)
    h.run()
    given = h.add(
        "given", [*prompt, *sampled.output], max_tokens=1, prompt_logprobs=0,
        prompt_logprobs_start=len(prompt), prompt_logprobs_temperature=temperature,
    )  # fmt: skip
    h.run()
    own = torch.tensor(given.prompt_token_logprobs)
    torch.testing.assert_close(own, torch.tensor(sampled.log_probs), atol=1e-5, rtol=0)
    expected = plain_log_probs(h.model, [*prompt, *sampled.output], temperature)[len(prompt) - 1 :]
    torch.testing.assert_close(own, expected[range(len(own)), sampled.output], atol=1e-5, rtol=0)


def test_tokens_outside_of_the_tokenizer_are_never_chosen(harness):
    h = harness(vocab_limit=7)
    for i in range(20):
        h.add(str(i), [1, 2, i], seed=i, max_tokens=20, temperature=0.0 if i % 2 else 3.0)
    assert max(token for r in h.run().values() for token in r.output) < 7


def test_memory_bounds_what_runs_at_once(harness):
    h = harness()
    slots = h.engine.model.slots
    slots.max_bytes = 3 * 48 * slots.bytes_per_token
    for i in range(8):
        h.add(str(i), [1, 2, i], seed=i, max_tokens=40)
    h.engine.step()
    assert len(h.engine.running) == 3 and len(h.engine.waiting) == 5
    assert len(h.run()) == 8
    with pytest.raises(ValueError, match="kv_cache_gib"):
        h.add("too long", [1], max_tokens=200)


def test_a_sliding_window_model_is_refused():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        sliding_window=4,
    )
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModelError):
        SlotModel(MistralForCausalLM(config).eval())


def test_a_model_that_ignores_positions_is_refused():
    class Deaf(type(build_model())):
        def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
            return super().forward(input_ids, attention_mask, past_key_values=past_key_values, use_cache=use_cache)

    deaf = Deaf(build_model().config).eval()
    with pytest.raises(UnsupportedModelError, match="depend on how a sequence is cut"):
        SlotModel(deaf)
