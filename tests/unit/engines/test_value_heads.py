"""A critic with several heads on verl's engine: each learns its own places, and all of them are saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl.workers.config import CriticConfig

from tests.fixtures.engines_alone import batch_of, build_engine, critic_loss_of, gradients
from tests.fixtures.trees_of_rows import branching
from verl_hier.engines.value_heads import value_heads_loss
from verl_hier.training.value_heads import mask_of, returns_of, values_of

pytestmark = pytest.mark.usefixtures("group")
ROWS = [row for row in branching(3, leaves=10) if len(row) > 1]
PROMPTS = [max(1, len(row) // 3) for row in ROWS]
WEIGHTS = {"low": 1.0, "high": 0.5, "term": 2.0}


def nested(like: torch.Tensor, make: Any) -> torch.Tensor:
    return torch.nested.as_nested_tensor(
        [make(row, len(part)) for row, part in enumerate(like.unbind())], layout=torch.jagged
    )


def heads_batch(**request: Any) -> Any:
    """Every head has other places and another target: 1, 2 and 3 in front of every first, second and third token."""
    batch = batch_of(ROWS, PROMPTS, **request)
    for place, head in enumerate(WEIGHTS):
        marks = nested(batch["responses"], lambda _, n, at=place: (torch.arange(n) % 3 == at).float())
        batch[mask_of(head)] = marks
        batch[returns_of(head)] = marks * (place + 1.0)
        batch[values_of(head)] = marks * 0.0
    return batch


def loss_of(**config: Any) -> Any:
    critic = CriticConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **config)
    return partial(value_heads_loss, critic, WEIGHTS)


def sums(metrics: dict[str, Any], name: str) -> float:
    return float(metrics[name].aggregate())


def test_losses_of_all_heads_fall_on_one_batch(model: Path) -> None:
    engine = build_engine(model, heads=tuple(WEIGHTS))
    losses: list[dict[str, float]] = []
    with engine.train_mode():
        for _ in range(40):
            engine.optimizer_zero_grad()
            found = engine.forward_backward_batch(heads_batch(), loss_of(cliprange_value=10.0))
            engine.optimizer_step()
            losses.append({head: sums(found["metrics"], f"{head}/vf_loss") for head in WEIGHTS})
    # Heads begin at 0: half of the square of their targets.
    assert losses[0] == pytest.approx({"low": 0.5, "high": 2.0, "term": 4.5}, rel=1e-5)
    for head in WEIGHTS:
        assert losses[-1][head] < 0.5 * losses[0][head]


def test_the_loss_does_not_depend_on_micro_batches_and_adds_up(model: Path) -> None:
    engine = build_engine(model, heads=tuple(WEIGHTS))
    torch.nn.init.constant_(next(p for n, p in engine.module.named_parameters() if "score.weight" in n).data, 0.01)
    found = []
    for limit in (4096, 40):
        with engine.train_mode():
            engine.optimizer_zero_grad()
            output = engine.forward_backward_batch(
                heads_batch(max_token_len_per_gpu=limit), loss_of(cliprange_value=0.5)
            )
            parts = {head: sums(output["metrics"], f"{head}/vf_loss") for head in WEIGHTS}
            assert sum(output["loss"]) == pytest.approx(sum(WEIGHTS[head] * parts[head] for head in WEIGHTS), rel=1e-5)
            found.append((sum(output["loss"]), gradients(engine), len(output["loss"])))
    (loss, expected, _), (split_loss, split, micro_batches) = found
    assert micro_batches > 1 and split_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        np.testing.assert_allclose(split[name], gradient, rtol=1e-4, atol=1e-6)


def test_one_head_on_every_token_is_verls_critic(model: Path) -> None:
    """Same loss, and the same gradient of everything below the head."""
    ours, stock = build_engine(model, heads=("token",)), build_engine(model, critic=True)
    weights = dict(stock.module.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.module.named_parameters():
            parameter.copy_(weights[name])
    batch = batch_of(ROWS, PROMPTS)
    batch["values"], batch["returns"] = batch["old_log_probs"] * 0.3 + 1.2, batch["advantages"]
    batch[values_of("token")], batch[returns_of("token")] = batch["values"], batch["returns"]
    batch[mask_of("token")] = batch["response_mask"]
    critic = CriticConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, cliprange_value=0.5)
    found = []
    for engine, loss in ((stock, critic_loss_of()), (ours, partial(value_heads_loss, critic, {"token": 1.0}))):
        with engine.train_mode():
            engine.optimizer_zero_grad()
            output = engine.forward_backward_batch(batch.copy(), loss)
            found.append((sum(output["loss"]), gradients(engine)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6) and found[0][0] > 0
    for name, gradient in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], gradient, rtol=1e-5, atol=1e-7)


def test_a_mini_batch_without_a_place_of_a_head_has_no_loss_of_it(model: Path) -> None:
    engine = build_engine(model, heads=tuple(WEIGHTS))
    batch = heads_batch()
    batch[mask_of("high")] = batch[mask_of("high")] * 0.0
    with engine.train_mode():
        output = engine.forward_backward_batch(batch, loss_of())
    assert sums(output["metrics"], "high/vf_loss") == 0 and np.isfinite(sum(output["loss"]))


def test_a_saved_critic_keeps_its_heads_by_name(model: Path, tmp_path: Path) -> None:
    engine = build_engine(model, heads=tuple(WEIGHTS))
    name = "score.weight"
    with torch.no_grad():
        torch.nn.init.normal_(dict(engine.module.named_parameters())[name].data)
    state = {
        key: getattr(tensor, "full_tensor", lambda t=tensor: t)() for key, tensor in engine.module.state_dict().items()
    }
    engine.module.config.save_pretrained(tmp_path)
    from safetensors.torch import save_file

    save_file({key: tensor.contiguous() for key, tensor in state.items()}, tmp_path / "model.safetensors")
    from transformers import AutoConfig, AutoModelForTokenClassification

    assert AutoConfig.from_pretrained(tmp_path).id2label == {0: "low", 1: "high", 2: "term"}
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.state_dict()[name], state[name])
    assert (loaded.state_dict()[name] != 0).any()
