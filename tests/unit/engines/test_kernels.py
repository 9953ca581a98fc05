"""The layouts for the kernels of a GPU say the same as the mask of the tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests.fixtures.trees_of_rows import branching
from verl_hier.engines import attention
from verl_hier.engines.attention import Layout, attend_in_blocks, attend_with_mask, kernel_of
from verl_hier.engines.packing import Packed

CPU = torch.device("cpu")


def tensors(size: int, heads: int = 4, groups: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, number, size, 16) for number in (heads, groups, groups)]


def dense(packed: Packed, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """(1, T, H, D)"""
    asking, asked = np.ogrid[: len(packed), : len(packed)]
    mask = torch.as_tensor((asked <= asking) & (asking < packed.end[asked]))
    found = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return found.transpose(1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_flex_attention(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled, which takes a minute on a CPU."""
    monkeypatch.setattr(attention, "_compiled", flex_attention)
    packed = Packed.of(branching(seed, leaves=30))
    query, key, value = tensors(len(packed))
    found = attend_with_mask(query, key, value, Layout(packed, CPU), 0.3)
    assert (found - dense(packed, query, key, value, 0.3)).abs().max() < 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_variable_length_kernels(seed: int) -> None:
    """Each run is a causal attention whose last query sees all keys, as flash-attn defines it."""
    packed = Packed.of(branching(seed, leaves=30))
    query, key, value = tensors(len(packed), groups=4)
    index, queries, keys, most_queries, most_keys = Layout(packed, CPU).runs
    found = []
    for run in range(len(queries) - 1):
        asking = query[:, :, queries[run] : queries[run + 1]]
        asked = index[keys[run] : keys[run + 1]]
        assert asking.shape[2] <= most_queries
        assert len(asked) <= most_keys
        mask = torch.ones(asking.shape[2], len(asked)).tril(len(asked) - asking.shape[2]).bool()
        found.append(scaled_dot_product_attention(asking, key[:, :, asked], value[:, :, asked], attn_mask=mask))
    together = torch.cat(found, 2).transpose(1, 2)
    assert queries.dtype == keys.dtype == torch.int32
    assert (together - dense(packed, query, key, value, 1 / math.sqrt(16))).abs().max() < 1e-5


def test_the_choice_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_of("cpu") is attend_in_blocks
    for installed, kernel in ((None, "attend_with_mask"), ("flash_attn", "attend_in_runs")):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, there=installed: there == name or None)
        assert kernel_of("cuda").__name__ == kernel
