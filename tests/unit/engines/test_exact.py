"""A model on a tree says and learns what it does on the rows one by one, and a wrong tree is noticed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.fixtures.trees_of_rows import VOCABULARY, Row, branching
from verl_hier.engines.attention import KEYWORD, NAME, Layout, register
from verl_hier.engines.cpu_attention import attend_on_cpu
from verl_hier.engines.packing import Edges, Packed

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_implementation": "sdpa",
    # Wide enough that a token depends on those before it.
    "initializer_range": 0.2,
}


def build(kind: str) -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES)) if kind == "qwen2" else LlamaForCausalLM(LlamaConfig(**SIZES))


@dataclasses.dataclass
class Outcome:
    """Log-probs and entropies of the rows' responses, one after the other, and the gradients of a loss on them."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    gradients: torch.Tensor


Forward = Callable[[Any, list[Row], list[int], float], tuple[torch.Tensor, torch.Tensor]]


def of_logits(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = torch.log_softmax(logits / temperature, -1)
    return log_probs.gather(-1, labels[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1)


def row_by_row(model: Any, rows: list[Row], prompts: list[int], temperature: float) -> tuple[Any, Any]:
    found = []
    for row, prompt in zip(rows, prompts, strict=True):
        tokens = torch.as_tensor(row)
        logits = model(input_ids=tokens[None], use_cache=False).logits[0]
        found.append(of_logits(logits[prompt - 1 : -1], tokens[prompt:], temperature))
    return torch.cat([a for a, _ in found]), torch.cat([b for _, b in found])


def on_tree(
    model: Any,
    rows: list[Row],
    prompts: list[int],
    temperature: float,
    change: Callable[[Packed], Packed] = lambda packed: packed,
    by_shift: bool = False,
) -> tuple[Any, Any]:
    packed = change(Packed.of(rows))
    edges = Edges.of(packed, prompts)
    parents = edges.children - 1 if by_shift else edges.parents
    logits = model(
        input_ids=torch.as_tensor(packed.tokens)[None],
        position_ids=torch.as_tensor(packed.positions)[None],
        logits_to_keep=torch.as_tensor(parents),
        use_cache=False,
        **{KEYWORD: Layout(packed, torch.device("cpu"))},
    ).logits[0]
    found = of_logits(logits, torch.as_tensor(packed.tokens[edges.children]), temperature)
    places = edges.places[edges.places < len(edges.children)]
    return found[0][places], found[1][places]


def outcome(model: Any, forward: Forward, rows: list[Row], temperature: float = 1.0) -> Outcome:
    """With a clipped loss of mixed signs whose ratio is not 1, an entropy term, and weights of tokens."""
    prompts = [max(1, len(row) // 3) for row in rows]
    log_probs, entropy = forward(model, rows, prompts, temperature)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(3, len(log_probs), generator=generator)
    ratio = torch.exp(log_probs - log_probs.detach() + 0.3 * noise[0])
    loss = -torch.minimum(noise[1] * ratio, noise[1] * ratio.clamp(0.8, 1.2)) * noise[2].abs() - 0.1 * entropy
    model.zero_grad()
    loss.mean().backward()
    gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return Outcome(log_probs.detach(), entropy.detach(), gradients)


def tree_of(model: Any) -> Any:
    register()
    twin = copy.deepcopy(model)
    twin.set_attn_implementation(NAME)
    return twin


def difference(left: torch.Tensor, right: torch.Tensor) -> float:
    assert left.shape == right.shape
    assert torch.isfinite(left).all()
    assert torch.isfinite(right).all()
    return float((left - right).detach().abs().max())


def largest(values: torch.Tensor) -> float:
    """What a rounding error of float32 is measured by: the kernels of processors sum in different orders."""
    return float(values.detach().abs().max())


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_row_by_row(kind: str, checkpointing: bool, temperature: float, seed: int) -> None:
    rows, model = branching(seed), build(kind)
    twin = tree_of(model)
    if checkpointing:
        twin.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        twin.train()
    expected, found = outcome(model, row_by_row, rows, temperature), outcome(twin, on_tree, rows, temperature)
    assert difference(found.log_probs, expected.log_probs) < 1e-5 * largest(expected.log_probs)
    assert difference(found.entropy, expected.entropy) < 1e-5 * largest(expected.entropy)
    assert difference(found.gradients, expected.gradients) < 1e-5 * largest(expected.gradients)
    assert float(torch.cosine_similarity(found.gradients.double(), expected.gradients.double(), 0)) > 1 - 1e-9


@pytest.mark.parametrize(
    "rows",
    [
        [np.arange(9)],
        [np.arange(9), np.arange(9)],
        [np.arange(9), np.arange(5)],
        [np.arange(9), np.arange(9)[::-1].copy()],
        [np.arange(2), np.array([0, 5]), np.array([0, 7])],
    ],
    ids=["one row", "duplicates", "a strict prefix", "unrelated rows", "rows that part at their prompt"],
)
def test_small_forests(rows: list[Row]) -> None:
    model = build("qwen2")
    expected, found = outcome(model, row_by_row, rows), outcome(tree_of(model), on_tree, rows)
    assert difference(found.log_probs, expected.log_probs) < 1e-5 * largest(expected.log_probs)
    assert difference(found.gradients, expected.gradients) < 1e-5 * largest(expected.gradients)


def whole_triangle(packed: Packed) -> Packed:
    """Every token sees all that stand before it."""
    end = np.full(len(packed), len(packed))
    return dataclasses.replace(packed, end=end, starts=np.zeros(1, np.int64))


def without_prefix(packed: Packed) -> Packed:
    """Tokens see nothing above the place where their row parted."""
    stops = np.append(packed.starts[1:], len(packed))
    return dataclasses.replace(packed, end=np.repeat(stops, np.diff(np.append(packed.starts, len(packed)))))


def packed_positions(packed: Packed) -> Packed:
    return dataclasses.replace(packed, positions=np.arange(len(packed)))


@pytest.mark.parametrize(
    "broken",
    [
        {"change": whole_triangle},
        {"change": without_prefix},
        {"change": packed_positions},
        {"by_shift": True},
    ],
    ids=["a plain causal mask", "no prefix", "positions of the pack", "log-probs by shift"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_tree_is_noticed(broken: dict[str, Any], seed: int) -> None:
    rows, model = branching(seed), build("qwen2")
    expected = outcome(model, row_by_row, rows)
    found = outcome(tree_of(model), lambda *args: on_tree(*args, **broken), rows)
    assert difference(found.log_probs, expected.log_probs) > 1e-2
    assert float(torch.cosine_similarity(found.gradients, expected.gradients, 0)) < 0.999


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_attention_alone(heads: tuple[int, int], dtype: torch.dtype) -> None:
    packed = Packed.of(branching(5, leaves=20))
    size, (many, few) = len(packed), heads
    torch.manual_seed(0)
    tensors = [torch.randn(1, number, size, 16, dtype=dtype, requires_grad=True) for number in (many, few, few)]
    query, key = np.ogrid[:size, :size]
    mask = torch.as_tensor((key <= query) & (query < packed.end[key]))
    repeated = [tensors[0], *(shared.repeat_interleave(many // few, 1) for shared in tensors[1:])]
    expected = scaled_dot_product_attention(*repeated, attn_mask=mask, scale=0.3)
    found = attend_on_cpu(*tensors, packed.stretches(), 0.3)
    gradient = torch.randn_like(expected)
    tolerance = 1e-12 if dtype == torch.float64 else 0.06
    assert difference(found, expected) < tolerance
    for ours, theirs in zip(
        torch.autograd.grad(found, tensors, gradient), torch.autograd.grad(expected, tensors, gradient), strict=True
    ):
        assert difference(ours, theirs) < tolerance * max(1.0, float(theirs.abs().max()))
