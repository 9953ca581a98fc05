"""Requests with an adapter of their own on one served model: each is answered as by the model with it merged."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.fixtures.small_models import Harness, build_model, plain_log_probs, random_prompts
from verl_hier.runtime_cpu.generation.adapters import Adapters

SCALES = {"first": 2.0, "second": 0.5}
RANKS = {"first": 2, "second": 3}
LAYERS = {"first": ("q_proj", "v_proj", "down_proj"), "second": ("q_proj", "up_proj")}


def adapter_of(model: torch.nn.Module, name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """An adapter on the layers of `LAYERS`, large enough to change what is likely."""
    draw, found = torch.Generator().manual_seed(seed + len(name)), dict[str, torch.Tensor]()
    for layer, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and layer.rpartition(".")[2] in LAYERS[name]:
            rank = RANKS[name]
            found[f"{layer}.lora_A"] = torch.randn(rank, module.in_features, generator=draw) * 0.2
            found[f"{layer}.lora_B"] = torch.randn(module.out_features, rank, generator=draw) * 0.2
    assert len(found) > 6
    return found


def merged(model: torch.nn.Module, tensors: dict[str, torch.Tensor], scale: float) -> torch.nn.Module:
    made = copy.deepcopy(model)
    for tensor, into in tensors.items():
        layer, _, part = tensor.rpartition(".")
        if part == "lora_A":
            made.get_submodule(layer).weight.data += scale * tensors[f"{layer}.lora_B"] @ into
    return made


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_an_answer_has_the_log_probs_of_the_merged_model(kind: str) -> None:
    served = Harness(build_model(kind))
    models: dict[str | None, torch.nn.Module] = {None: build_model(kind)}
    for name, scale in SCALES.items():
        tensors = adapter_of(served.model, name)
        served.engine.model.adapters.load(name, tensors, scale)
        models[name] = merged(build_model(kind), tensors, scale)
    # The same prompts with each adapter at once: in one batch, and with a prefix that only the tokens have in common.
    for number, prompt in enumerate(random_prompts(4)):
        for name in models:
            for turn in range(2):
                served.add(f"{number} {name} {turn}", prompt, seed=turn, max_tokens=6).adapter = name
    served.add("scored", random_prompts(1)[0], max_tokens=1, prompt_logprobs=0).adapter = "second"
    served.run()
    answers = {name: set() for name in models}
    for key, request in served.finished.items():
        expected = plain_log_probs(models[request.adapter], request.tokens)
        own = expected.gather(1, torch.tensor(request.tokens[1:]).unsqueeze(1)).squeeze(1)
        if key == "scored":
            assert request.prompt_token_logprobs[: request.prompt_length - 1] == pytest.approx(
                own[: request.prompt_length - 1].tolist(), abs=1e-5
            )
            continue
        assert request.log_probs == pytest.approx(own[request.prompt_length - 1 :].tolist(), abs=1e-5)
        answers[request.adapter].add(tuple(request.log_probs))
    assert len(set.union(*answers.values())) == 3 * 8, "the adapters say the same, so that nothing was tested"
    # Asked again: the prefixes that are in the caches now are those of the adapter.
    for name in models:
        served.add(f"again {name}", random_prompts(4)[0], seed=0, max_tokens=6).adapter = name
    served.run()
    for name in models:
        again, before = served.finished[f"again {name}"], served.finished[f"0 {name} 0"]
        assert again.cached_tokens and again.log_probs == pytest.approx(before.log_probs, abs=1e-5)


def test_an_adapter_takes_the_place_of_the_one_of_its_name() -> None:
    model = build_model("llama")
    adapters, tokens = Adapters(model), random_prompts(1)[0]
    for seed in (0, 1):
        tensors = adapter_of(model, "first", seed)
        adapters.load("first", tensors, 1.0)
        with adapters.used(["first"]):
            found = plain_log_probs(model, tokens)
        assert torch.allclose(found, plain_log_probs(merged(build_model("llama"), tensors, 1.0), tokens), atol=1e-5)
    assert torch.equal(plain_log_probs(model, tokens), plain_log_probs(build_model("llama"), tokens))
    assert adapters.names == ["first"] and "second" not in adapters


def test_an_adapter_that_does_not_fit_is_refused() -> None:
    model = build_model("llama")
    adapters, layer = Adapters(model), "model.layers.0.self_attn.q_proj"
    good = {f"{layer}.lora_A": torch.zeros(2, 32), f"{layer}.lora_B": torch.zeros(32, 2)}
    for tensors, said in (
        ({**good, f"{layer}.bias": torch.zeros(1)}, "and no"),
        ({"model.norm.lora_A": torch.zeros(2, 32)}, "does not have as a linear one"),
        ({f"{layer}.lora_A": torch.zeros(2, 32)}, "lacks a part"),
        ({**good, f"{layer}.lora_A": torch.zeros(2, 31)}, "32 to 32"),
        ({**good, f"{layer}.lora_A": torch.zeros(3, 32)}, "shapes"),
        ({**good, f"{layer}.lora_B": torch.zeros(31, 2)}, "shapes"),
    ):
        with pytest.raises(ValueError, match=said):
            adapters.load("first", tensors, 1.0)
    assert not adapters.names
