"""The second model on verl's engine: it learns the weights that it is given, whatever the micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verl.workers.utils.padding import response_from_nested

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, gradients, process_group
from verl_hier.engines.process_reward import process_loss
from verl_hier.training.process_reward import WEIGHTS

ROWS = [[1, 2, 3, 4, 5], [1, 2, 9, 9], [7, 8, 3, 3, 1, 2]]
PROMPTS = [2, 2, 3]


def weighted(**request: Any) -> Any:
    batch = batch_of(ROWS, PROMPTS, **request)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(len(row) - prompt, generator=generator) for row, prompt in zip(ROWS, PROMPTS, strict=True)]
    batch[WEIGHTS] = torch.nested.as_nested_tensor(weights, layout=torch.jagged)
    return batch


def test_the_gradient_is_that_of_the_weighted_log_probs(tmp_path: Path) -> None:
    model = write_byte_model(tmp_path / "model")
    found = []
    with process_group(tmp_path / "store"):
        for tokens in (4096, 6):
            engine = build_engine(model)
            with engine.train_mode():
                batch = weighted(calculate_entropy=False, max_token_len_per_gpu=tokens)
                output = engine.forward_backward_batch(batch, process_loss)
                found.append((gradients(engine), float(sum(output["loss"]))))
        with engine.eval_mode():
            alone = engine.infer_batch(weighted(calculate_entropy=False), loss_function=None)["model_output"]
    batch = weighted()
    logs = response_from_nested(alone["log_probs"], batch["response_mask"]).values()
    assert found[0][1] == pytest.approx(float((logs * batch[WEIGHTS].values()).sum()), rel=1e-4)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-4)
    for name, gradient in found[0][0].items():
        torch.testing.assert_close(gradient, found[1][0][name], rtol=1e-4, atol=1e-6)
