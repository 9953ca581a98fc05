"""What the second model of an implicit process reward learns: a weight on each of its log-probs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from verl.workers.utils.padding import response_from_nested

from verl_hier.training.process_reward import WEIGHTS

MODEL_TYPE = "language_model"
"""What verl's registry of engines calls the second model."""


def process_loss(
    model_output: Mapping[str, torch.Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The sum of log-probs times their weights, whose gradient is that of the loss over pairs at the same parameters.

    Args:
        model_output: `log_probs`, as the engine returns them.
        data: a micro-batch with the field `WEIGHTS`.
        dp_group: data-parallel ranks; their gradients are averaged, so that the sum is multiplied by their number.

    Returns:
        the loss, and no metrics: its value says nothing.
    """
    log_probs = response_from_nested(model_output["log_probs"], data["response_mask"]).values()
    total = (log_probs * data[WEIGHTS].values().to(log_probs)).sum() * data["dp_size"]
    return total, {}
