"""verl's correction of rollout/training mismatch beside our loss weights: both apply to every token."""

from __future__ import annotations

import torch
import verl.trainer.ppo.v1  # noqa: F401  - our trainers register themselves when verl is asked for its own
from verl.workers.utils.padding import response_to_nested

from verl_hier.compat.corrections import row_products


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_weights_of_both_multiply_token_by_token():
    masks = jagged([1, 1, 1], [1])
    corrected = response_to_nested(torch.tensor([[1.0, 2.0, 0.5], [3.0, 0.0, 0.0]]), masks)
    product = row_products(corrected, jagged([0.5, 0.5, 0.5], [2.0]))
    assert [row.tolist() for row in product.unbind()] == [[0.5, 1.0, 0.25], [6.0]]
