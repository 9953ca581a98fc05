"""Attention of the slots: one new token a sequence, without a copy of the keys and values for each query head."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "verl_hier_slots"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in transformers' interface.

    With a mask transformers copies keys and values once for each query head that shares them, in every layer and for
    every token. Where each row has one new token, those query heads are as well queries of one head.

    Args:
        module: the layer.
        query: (rows, heads, new, size).
        key, value: (rows, heads of keys, length, size).
        attention_mask: (rows, 1 or heads, new, length), added to the scores; None for causal attention.
        scaling: of the scores.
        options: for transformers' own function.

    Returns:
        (rows, new, heads, size), and no weights.
    """
    rows, heads, new, size = query.shape
    shared = heads // key.shape[1]
    if shared == 1 or new > 1 or attention_mask is None or attention_mask.shape[1] > 1:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return found, None
    together = query.reshape(rows, key.shape[1], shared, size)
    found = scaled_dot_product_attention(together, key, value, attn_mask=attention_mask, scale=scaling)
    return found.reshape(rows, 1, heads, value.shape[-1]), None


def use_slots_attention(model: Any) -> None:
    """Let a model that asks transformers for its attention use `attend`; another one keeps its own."""
    if model._can_set_attn_implementation():
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
