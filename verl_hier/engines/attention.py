"""Attention in which each token of a packed tree sees the tokens before it in its rows, and no other one.

One function is registered with transformers; which kernels do the work depends on the device and on what is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from verl_hier.engines.cpu_attention import attend_on_cpu
from verl_hier.engines.packing import Packed
from verl_hier.errors import RecipeError

logger = logging.getLogger(__name__)

NAME = "hier_tree"
"""The attention implementation that a model's configuration names."""
KEYWORD = "hier_tree"
"""Argument of the model's forward pass under which the tree travels to its attention layers."""
ARGUMENTS = frozenset(
    {"attention_mask", "position_ids", "use_cache", "is_causal", "cache_position", "output_attentions"}
    | {"output_hidden_states", "return_dict", "past_key_value", "past_key_values"}
)
"""What models hand to their attention that changes nothing here."""


class Layout:
    """The tree of one forward pass, and what the kernels need of it; no part of it has a gradient.

    It is a plain class, so that FSDP hands it on as it is instead of rebuilding it.
    """

    def __init__(self, packed: Packed, device: torch.device) -> None:
        self.packed = packed
        self.device = device
        self.calls = 0
        """Attention layers that have used it."""

    @cached_property
    def stretches(self) -> list[tuple[int, int, int]]:
        """See `Packed.stretches`."""
        return self.packed.stretches()

    @cached_property
    def end(self) -> torch.Tensor:
        """(T,) end of each token's subtree, on the device."""
        return torch.as_tensor(self.packed.end, device=self.device)

    @cached_property
    def block_mask(self) -> Any:
        """FlexAttention's mask of the tree."""
        from torch.nn.attention.flex_attention import create_block_mask

        end, size = self.end, len(self.packed)

        def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (key <= query) & (query < end[key])

        return create_block_mask(sees, None, None, size, size, device=self.device)

    @cached_property
    def runs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
        """The depth-first runs for variable-length kernels, each a causal attention that ends where its keys end.

        Returns:
            (K,) where the keys of all runs are, (N + 1,) int32 offsets of their queries, (N + 1,) int32 offsets of
            their keys, the most queries and the most keys of a run.
        """
        parents = self.packed.parents
        begins = np.flatnonzero(parents != np.arange(len(parents)) - 1)
        begins = begins if len(begins) and begins[0] == 0 else np.append(0, begins)
        stops = np.append(begins[1:], len(parents))
        keys, above = [], np.empty(0, np.int64)
        for begin, stop in zip(begins, stops, strict=True):
            above = np.append(above[: self.packed.positions[begin]], np.arange(begin, stop))
            keys.append(above)
        queries, lengths = stops - begins, np.array([len(each) for each in keys])
        offsets = [torch.as_tensor(np.append(0, np.cumsum(n)), dtype=torch.int32) for n in (queries, lengths)]
        index = torch.as_tensor(np.concatenate(keys), device=self.device)
        return index, offsets[0].to(self.device), offsets[1].to(self.device), int(queries.max()), int(lengths.max())


Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layout, float], torch.Tensor]
"""(1, H, T, D) queries, (1, G, T, D) keys and values with H a multiple of G, tree and scale to (1, T, H, D)."""


def attend_in_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float
) -> torch.Tensor:
    """On a CPU: causal attention within each stretch of the tree and whole attention to it from what follows it."""
    return attend_on_cpu(query, key, value, layout.stretches, scale).transpose(1, 2)


def attend_in_runs(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float
) -> torch.Tensor:
    """On a GPU with flash-attn: its variable-length kernels, one sequence for each depth-first run."""
    index, queries, keys, most_queries, most_keys = layout.runs
    found: torch.Tensor = importlib.import_module("flash_attn").flash_attn_varlen_func(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1)[index],
        value[0].transpose(0, 1)[index],
        queries,
        keys,
        most_queries,
        most_keys,
        softmax_scale=scale,
        causal=True,
    )
    return found.unsqueeze(0)


def attend_with_mask(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float
) -> torch.Tensor:
    """On a GPU without flash-attn: FlexAttention with the tree as its block mask."""
    found = _compiled_flex_attention()(
        query, key, value, block_mask=layout.block_mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return found.transpose(1, 2)


_compiled: Callable[..., torch.Tensor] | None = None


def _compiled_flex_attention() -> Callable[..., torch.Tensor]:
    global _compiled
    if _compiled is None:
        from torch.nn.attention.flex_attention import flex_attention

        _compiled = torch.compile(flex_attention, dynamic=True)
    return _compiled


def kernel_of(device: str) -> Kernel:
    """The kernel for a device type, by what is installed."""
    if device == "cpu":
        return attend_in_blocks
    return attend_in_runs if importlib.util.find_spec("flash_attn") else attend_with_mask


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of a layer, as transformers calls it.

    Args:
        module: the layer.
        query: (1, H, T, D).
        key, value: (1, G, T, D).
        attention_mask: None; the tree is the mask.
        scaling: factor of the scores; None is D to the power of -1/2.
        dropout, sliding_window: 0 and None.
        others: the tree as `KEYWORD`, and arguments of `ARGUMENTS`.

    Returns:
        (1, T, H, D) and None in place of the weights.

    Raises:
        RecipeError: when the layer asks for something else than plain causal attention.
    """
    layout = others.pop(KEYWORD, None)
    asked = {name for name, given in others.items() if name not in ARGUMENTS and given is not None}
    asked |= {
        name
        for name, given in (
            ("attention_mask", attention_mask),
            ("dropout", dropout),
            ("sliding_window", sliding_window),
        )
        if given is not None and given is not False and not (isinstance(given, float) and given == 0)
    }
    if not isinstance(layout, Layout) or asked:
        problem = f"is called with {', '.join(sorted(asked))}" if asked else "does not receive the tree"
        raise RecipeError(
            f"engine: tree: {type(module).__name__} {problem}, and only plain causal attention is exact on a tree; "
            "take engine: stock for this model."
        )
    layout.calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return kernel_of(query.device.type)(query, key, value, layout, scale), None


def register() -> None:
    """Make the attention known to transformers by `NAME`. Idempotent."""
    AttentionInterface.register(NAME, attend)
