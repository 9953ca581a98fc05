"""What policy losses of plugins share: verl's signature, its clip range, and means over tokens for their metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PolicyLoss = Callable[..., "tuple[torch.Tensor, dict[str, Any]]"]
"""A loss with verl's signature. It returns the aggregated loss and metrics."""


def clip_range(config: Any) -> tuple[float, float]:
    """How far the policy ratio may fall below 1 and rise above it.

    Args:
        config: verl's actor config, as a dataclass or a `DictConfig`. `clip_ratio` stands for each of `clip_ratio_low`
            and `clip_ratio_high` that is null.
    """
    low, high = config.clip_ratio_low, config.clip_ratio_high
    return config.clip_ratio if low is None else low, config.clip_ratio if high is None else high


def token_mean(values: torch.Tensor, mask: torch.Tensor) -> float:
    """Mean of values (B, L), numbers or booleans, over the tokens where the mask (B, L) is 1; 0 without any."""
    return float((values.detach() * mask).sum() / mask.sum().clamp(min=1))
