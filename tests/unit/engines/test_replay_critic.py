"""The worker of an off-policy critic: where its heads read, what an optimiser step teaches them, and its slow copy."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.config import CheckpointConfig
from verl.workers.config import (
    CriticConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import EXACT, process_group
from verl_hier.beside.replay import WorkerCritic, loss_of, worker_with_copy
from verl_hier.training.replay import HEADS, Row

ROWS = [
    Row(np.array([3, 4, 5], np.int32), np.array([6, 7], np.int32)),
    Row(np.array([3, 4, 5], np.int32), np.array([8, 9, 10], np.int32)),
    Row(np.array([1, 2], np.int32), np.zeros(0, np.int32)),
]


class Alone:
    """A worker group of one worker in this process."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._worker, name)
        return lambda *arguments: SimpleNamespace(get=lambda found=method(*arguments): found)


def build(folder: Path, rate: float) -> Any:
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        mixed_precision=EXACT,
        max_token_len_per_gpu=64,
        infer_max_token_len_per_gpu=64,
        use_dynamic_bsz=True,
    )
    worker = worker_with_copy(HEADS, rate)(
        TrainingWorkerConfig(
            model_type="value_model",
            model_config=HFModelConfig(
                path=str(folder),
                enable_gradient_checkpointing=False,
                use_remove_padding=False,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=1e-2, total_training_steps=10),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    worker.set_loss_fn(loss_of(CriticConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1), HEADS))
    return worker


def test_a_worker_learns_targets_and_its_copy_follows_and_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(20000 + os.getpid() % 20000))
    with process_group(tmp_path / "store"):
        worker = build(write_byte_model(tmp_path / "model"), rate=0.25)
        critic = WorkerCritic(Alone(worker), HEADS, ranks=2)
        begin = critic.values(ROWS, copy=False)
        # The ranks do not divide three rows; heads of one purpose differ; in front of a text only the context is known.
        assert [values.shape for values in begin] == [(4, 3), (4, 4), (4, 1)]
        assert (begin[0][0] != begin[0][1]).all() and np.allclose(begin[0][:, 0], begin[1][:, 0], atol=1e-5)
        assert abs(begin[0][0, -1] - begin[1][0, -1]) > 1e-5
        np.testing.assert_allclose(critic.values(ROWS, copy=True)[1], begin[1], atol=1e-6)
        targets = [np.full(values.shape, np.nan) for values in begin]
        targets[0][:2, -1], targets[1][2:, 0] = 1.0, -1.0
        before = {name: part.full_tensor().clone() for name, part in worker.engine.module.named_parameters()}
        metrics = critic.fit(ROWS, targets, last=True)
        for head, name in enumerate(HEADS):
            error = (1.0 - begin[0][head, -1]) if head < 2 else (-1.0 - begin[1][head, 0])
            assert metrics[f"critic/{name}/vf_loss"] == pytest.approx(error**2 / 2, rel=1e-4)
        assert metrics["critic/grad_norm"] > 0
        after = {name: part.full_tensor().clone() for name, part in worker.engine.module.named_parameters()}
        worker.exchange()
        for name, part in worker.engine.module.named_parameters():
            expected = before[name] + 0.25 * (after[name] - before[name])
            torch.testing.assert_close(part.full_tensor(), expected, rtol=1e-5, atol=1e-7)
        worker.exchange()
        for _ in range(15):
            critic.fit(ROWS, targets, last=False)
        now, slow = critic.values(ROWS, copy=False), critic.values(ROWS, copy=True)
        np.testing.assert_allclose(now[0][:2, -1], 1.0, atol=0.3)
        np.testing.assert_allclose(now[1][2:, 0], -1.0, atol=0.3)
        worker.save_checkpoint(str(tmp_path / "critic"), None, 1)
        other = build(tmp_path / "model", rate=0.25)
        other.load_checkpoint(str(tmp_path / "critic"), None, False)
        again = WorkerCritic(Alone(other), HEADS, ranks=1)
        for copy, expected in ((False, now), (True, slow)):
            for found, values in zip(again.values(ROWS, copy=copy), expected, strict=True):
                np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
