"""An optimiser step is left out where the policy has moved too far from the one that was sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl.workers.utils.padding import response_from_nested

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, loss_of, process_group
from verl_hier.engines.kl_limit import action_sums, train_within

ROWS, PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 9, 9], [7, 8, 3, 3, 1, 2]], [2, 2, 3]


def weights(engine: Any) -> list[np.ndarray]:
    return [part.full_tensor().detach().numpy().copy() for part in engine.module.parameters()]


def test_a_step_is_made_within_the_limit_and_left_out_beyond_it(tmp_path: Path) -> None:
    with process_group(tmp_path / "store"):
        engine = build_engine(write_byte_model(tmp_path / "model"))
        with engine.eval_mode():
            found = engine.infer_batch(batch_of(ROWS, PROMPTS, calculate_entropy=False), loss_function=None)
        logs = response_from_nested(found["model_output"]["log_probs"], batch_of(ROWS, PROMPTS)["response_mask"])

        def step(limit: float, shift: float) -> tuple[bool, dict[str, Any]]:
            # In micro-batches of a row or two; of the log ratio only trained tokens count.
            batch = batch_of(ROWS, PROMPTS, max_token_len_per_gpu=10)
            mask = batch["response_mask"].values()
            values = logs.values() - torch.where(mask > 0, shift, 5.0)
            batch["old_log_probs"] = torch.nested.nested_tensor_from_jagged(values, batch["response_mask"].offsets())
            before = weights(engine)
            with engine.train_mode():
                metrics = train_within(engine, limit, batch, loss_of())["metrics"]
            moved = any((now != then).any() for now, then in zip(weights(engine), before, strict=True))
            return moved, metrics

        expected = np.exp(0.2) - 1 - 0.2
        moved, metrics = step(expected * 0.9, 0.2)
        assert not moved and metrics["left_out"] == [1.0] and metrics["grad_norm"] == 0
        assert metrics["kl_from_old"] == pytest.approx([expected], rel=1e-4)
        moved, metrics = step(expected * 1.1, 0.2)
        assert moved and metrics["left_out"] == [0.0] and metrics["grad_norm"] > 0


def test_the_ratio_of_an_action_is_that_of_its_tokens_together() -> None:
    rows = [[1, 1, 0, 1], [1, 0, 1, 1, 1], [0, 0]]
    chosen = torch.tensor([bool(each) for row in rows for each in row])
    offsets = torch.tensor(np.cumsum([0, *map(len, rows)]))
    values = torch.arange(1.0, float(chosen.sum()) + 1, dtype=torch.float64)
    # The last run of the first row and the first one of the second stand side by side and are two actions.
    assert action_sums(values, chosen, offsets).tolist() == [3.0, 3.0, 4.0, 18.0]
    assert action_sums(values[:0], torch.zeros(3, dtype=torch.bool), torch.tensor([0, 3])).tolist() == []
