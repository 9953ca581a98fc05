"""Attention of one new token against transformers' own, whatever heads share keys and however long the rows are."""

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.fixtures.small_models import build_model
from verl_hier.runtime_cpu.generation.attention import NAME, attend
from verl_hier.runtime_cpu.generation.model import SlotModel


class Layer(torch.nn.Module):
    """What transformers reads of a layer."""

    def __init__(self, shared: int):
        super().__init__()
        self.num_key_value_groups, self.is_causal = shared, True


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("shared", [1, 2, 3])
@pytest.mark.parametrize("masked", ["rows", "heads", ""])
def test_it_is_that_of_transformers(new, shared, masked):
    draw = torch.Generator().manual_seed(100 * new + shared)

    def random(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    rows, heads, length = 4, 2, 17
    query, key = random(rows, heads * shared, new, 8), random(rows, length, heads, 8).transpose(1, 2)
    value, mask = random(rows, length, heads, 6).transpose(1, 2), None
    if masked:
        ends = torch.tensor([17, 9, 12, 5]).view(-1, 1, 1, 1)
        mask = torch.zeros(rows, 1, new, length, dtype=torch.float64)
        if masked == "heads":  # a bias of each head
            mask = random(rows, heads * shared, new, length)
        mask = mask.masked_fill(torch.arange(length) >= ends, torch.finfo(torch.float64).min)
    found, weights = attend(Layer(shared), query, key, value, mask, scaling=0.3)
    wanted, _ = sdpa_attention_forward(Layer(shared), query, key, value, mask, scaling=0.3)
    assert weights is None and found.shape == wanted.shape == (rows, new, heads * shared, 6)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_served_model_uses_it_and_one_that_cannot_is_served_with_its_own(monkeypatch):
    served = SlotModel(build_model())
    assert served.model.config._attn_implementation == NAME
    other = build_model()
    monkeypatch.setattr(type(other), "_can_set_attn_implementation", lambda *_: False)
    assert SlotModel(other).model.config._attn_implementation == "sdpa"
