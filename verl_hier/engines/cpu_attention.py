"""Exact attention over a tree from the flash kernels of a CPU, forward and backward, without a copy of keys or values.

The tokens of the subtree below a stretch of the tree follow it in depth-first order. So all attention to the keys of
a stretch is one causal square, of the stretch with itself, and one full rectangle, from what follows. The parts of a
query's softmax are put together by their log-sum-exp, as in ring attention; a backward kernel that is given the whole
result and the whole log-sum-exp returns exactly its part's share of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Stretch = tuple[int, int, int]
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_on_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, stretches: Sequence[Stretch], scale: float
) -> torch.Tensor:
    """Attention of T packed tokens, each to those that it sees.

    Args:
        query: (1, H, T, D).
        key, value: (1, G, T, D), H a multiple of G.
        stretches: as `Packed.stretches` gives them.
        scale: factor of the scores.

    Returns:
        (1, H, T, D), differentiable once.
    """
    found: torch.Tensor = _TreeAttention.apply(query, key, value, stretches, scale)
    return found


def _parts(stretches: Sequence[Stretch]) -> list[tuple[slice, slice, bool]]:
    """Queries, keys and causality of every part; the squares, which cover every query once, come first."""
    squares = [(slice(begin, stop), slice(begin, stop), True) for begin, stop, _ in stretches]
    return squares + [(slice(stop, end), slice(begin, stop), False) for begin, stop, end in stretches if end > stop]


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        stretches: Sequence[Stretch],
        scale: float,
    ) -> torch.Tensor:
        keys, values = _for_each_head(query, key), _for_each_head(query, value)
        output = query.new_empty(query.shape, dtype=torch.promote_types(query.dtype, torch.float32))
        weight = output.new_empty(query.shape[:3])
        for asking, asked, causal in _parts(stretches):
            found, sums = _forward(
                query[:, :, asking], keys[:, :, asked], values[:, :, asked], 0.0, causal, scale=scale
            )
            sums = sums.to(weight.dtype)
            if causal:
                output[:, :, asking], weight[:, :, asking] = found, sums
                continue
            before = weight[:, :, asking]
            share = torch.sigmoid(sums - before).unsqueeze(-1)
            output[:, :, asking].lerp_(found.to(output.dtype), share)
            weight[:, :, asking] = torch.logaddexp(before, sums)
        result = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, weight)
        ctx.stretches, ctx.scale = stretches, scale
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        query, key, value, output, weight = ctx.saved_tensors
        keys, values = _for_each_head(query, key), _for_each_head(query, value)
        exact = weight.dtype
        of_query = query.new_zeros(query.shape, dtype=exact)
        of_key, of_value = keys.new_zeros(keys.shape, dtype=exact), values.new_zeros(values.shape, dtype=exact)
        for asking, asked, causal in _parts(ctx.stretches):
            parts = _backward(
                grad[:, :, asking],
                query[:, :, asking],
                keys[:, :, asked],
                values[:, :, asked],
                output[:, :, asking],
                weight[:, :, asking].contiguous(),
                0.0,
                causal,
                scale=ctx.scale,
            )
            for whole, place, part in zip((of_query, of_key, of_value), (asking, asked, asked), parts, strict=True):
                whole[:, :, place] += part
        of_key, of_value = _of_groups(of_key, key), _of_groups(of_value, value)
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), None, None


def _for_each_head(query: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Keys or values of grouped heads, once for each head of the queries."""
    times = query.shape[1] // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, dim=1)


def _of_groups(gradient: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """The gradient of what `_for_each_head` made, as one of what it was given."""
    if gradient.shape[1] == shared.shape[1]:
        return gradient
    return gradient.unflatten(1, (shared.shape[1], -1)).sum(2)
