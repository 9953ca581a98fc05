"""Log-probs of labels, without a call of torch for each token."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROWS = 64
"""Rows of logits at a time: as verl's loop, this holds no second copy of all logits."""


def take_rows_together(functional: ModuleType) -> None:
    """Make `verl.utils.torch_functional` take the log-sum-exp of many rows of logits in one call.

    Reason: without flash-attention's cross-entropy, which needs a GPU, it loops over rows, which are tokens in verl's
    engines: a third of an update of a small model. The numbers and their gradients are the same bits.
    Link: https://github.com/verl-project/verl/blob/main/verl/utils/torch_functional.py
    Removal: when `logprobs_from_logits_v2` takes several rows at a time.

    Args:
        functional: the module `verl.utils.torch_functional`, just imported.
    """
    import torch

    # Any: a module of verl's, whose function is exchanged.
    seam: Any = functional
    original = seam.logprobs_from_logits_v2

    @functools.wraps(original)
    def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Of a batch of sequences verl takes one sequence at a time already.
        if logits.dtype not in (torch.float32, torch.float64) or logits.dim() != 2 or not len(logits):
            found: torch.Tensor = original(logits, labels)
            return found
        chosen = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.cat([rows.logsumexp(-1) for rows in logits.split(ROWS)])

    seam.logprobs_from_logits_v2 = log_probs
