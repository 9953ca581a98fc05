"""Token fields of verl's own correction of the mismatch between rollouts and training, and products of such fields."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.utils.padding import response_to_nested

from verl_hier.compat.extension import jagged

WEIGHTS = "rollout_is_weights"


def rollout_correction(algorithm: Any, data: TensorDict, metrics: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The fields that verl's `_compute_advantage` would change, nested with one number a token of the response.

    Args:
        algorithm: the block `algorithm` of a composed configuration.
        data: of each row `response_mask`, `old_log_probs`, and `rollout_log_probs` where servers return them.
        metrics: to which verl's are added.

    Returns:
        `response_mask` and `rollout_is_weights`, as far as the correction makes them; none without a correction.
    """
    config = algorithm.get("rollout_correction", None)
    if config is None or config.get("bypass_mode", False) or "rollout_log_probs" not in data:
        return {}
    padded = data.select("response_mask", "old_log_probs", "rollout_log_probs").to_padded_tensor()
    corrected, correction_metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=padded), config)
    metrics.update(correction_metrics)
    return {
        name: response_to_nested(corrected.batch[name], data["response_mask"])
        for name in ("response_mask", WEIGHTS)
        if name in corrected.batch
    }


def row_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of two nested tensors whose rows have the same lengths. `*` refuses them: each made its own offsets."""
    return jagged(a * b for a, b in zip(left.unbind(), right.unbind(), strict=True))
