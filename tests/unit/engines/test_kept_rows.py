"""Kept rows in verl's own worker of the actor: their loss is the clipped one against the policy that sampled them, and
the schedule of the learning rate does not see them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.workers.config import (
    ActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import EXACT, process_group
from verl_hier.beside.self_imitation import KEPT, content_of, worker_with_kept_rows
from verl_hier.training.self_imitation import KeptRow, loss_weights

CLIP = 0.2


class Actor:
    """As verl's worker of the actor names the class of what trains in it."""

    actor_worker_cls = TrainingWorker


def build(folder: Path) -> Any:
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        mixed_precision=EXACT,
        **{"max_token_len_per_gpu": 64, "infer_max_token_len_per_gpu": 64, "use_dynamic_bsz": True},
    )
    plain = {"use_remove_padding": False, "override_config": {"attn_implementation": "sdpa"}}
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(path=str(folder), enable_gradient_checkpointing=False, **plain),
        engine_config=engine,
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10, lr_scheduler_type="cosine"),
        checkpoint_config=CheckpointConfig(),
    )
    worker = worker_with_kept_rows(Actor).actor_worker_cls(config)  # type: ignore[attr-defined]
    worker.reset()
    actor = ActorConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, clip_ratio=CLIP)
    worker.set_loss_fn(partial(ppo_loss, actor))
    return worker


def test_kept_rows_have_the_clipped_loss_and_no_step_of_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(20000 + os.getpid() % 20000))
    generator = np.random.default_rng(0)
    rows = [
        KeptRow(
            step=1,
            score=1.0,
            prompt=np.array([3, 4, 5][: 1 + number], np.int32),
            response=generator.integers(1, 20, length).astype(np.int32),
            mask=np.array([1, 0, 1, 1, 1][:length], np.int8),
            log_probs=generator.normal(-5.5, 0.3, length).astype(np.float32),
            credit=np.ones(length, np.float32),
            weight=np.full(length, 1.0 + number, np.float32),
        )
        for number, length in enumerate((5, 3))
    ]
    advantages = [np.float32(0.5 + number) * row.mask for number, row in enumerate(rows)]
    weights = loss_weights(rows, 0.25)
    with process_group(tmp_path / "store"):
        worker = build(write_byte_model(tmp_path / "model"))
        content = content_of(rows, advantages, weights)
        request = {"temperature": 1.0, "calculate_entropy": False}
        asked = tu.get_tensordict(dict(content.items()), {**request, "compute_loss": False})
        now = response_from_nested(worker.infer_batch(asked)["log_probs"], content["response_mask"])

        def update(kept: bool) -> dict[str, Any]:
            sizes = {"global_batch_size": 2, "mini_batch_size": 2, "epochs": 1, "dataloader_kwargs": {}}
            batch = tu.get_tensordict(dict(content.items()), {**request, **sizes, **({KEPT: True} if kept else {})})
            return reduce_metrics(worker.train_mini_batch(batch)["metrics"])

        rate = worker.engine.optimizer.param_groups[0]["lr"]
        found = update(kept=True)
        assert worker.engine.optimizer.param_groups[0]["lr"] == rate and "lr" not in found
        expected, outside = 0.0, 0
        for row, own, advantage, weight in zip(rows, now.unbind(), advantages, weights, strict=True):
            ratio = np.exp(own.numpy().astype(np.float64) - row.log_probs)
            expected -= float((np.minimum(ratio, np.clip(ratio, 1 - CLIP, 1 + CLIP)) * advantage * weight).sum())
            outside += int(((ratio > 1 + CLIP) & (row.mask > 0)).sum())
        tokens = sum(int(row.mask.sum()) for row in rows)
        assert 0 < outside < tokens
        assert found["actor/pg_loss"] == pytest.approx(expected / tokens, rel=1e-4)
        assert found["actor/pg_clipfrac"] == pytest.approx(outside / tokens, abs=1e-6)
        assert found["grad_norm"] > 0
        update(kept=False)
        assert worker.engine.optimizer.param_groups[0]["lr"] < rate
