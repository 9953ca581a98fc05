"""The second model of an implicit process reward: verl's critic worker with a language model in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo.utils import Role
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from verl_hier.compat.extension import TrainerExtension, put_values, without_values
from verl_hier.training.process_reward import LOG_PROBS


class SecondModelWorker(TrainingWorker):  # type: ignore[misc]
    """verl's training worker with a language model (verl/workers/engine_workers.py)."""

    def __init__(self, config: Any) -> None:
        from verl_hier.engines.process_reward import MODEL_TYPE

        super().__init__(replace(config, model_type=MODEL_TYPE))


class ProcessReward(TrainerExtension):
    """The second model of `hier.process_reward`."""

    # The weights that it learns from hold at the parameters that it had before.
    critic_update = "one"

    def choose_workers(self) -> None:
        self.trainer.role_worker_mapping[Role.Critic] = ray.remote(SecondModelWorker)

    def begin(self) -> None:
        from verl_hier.engines.process_reward import process_loss

        self.trainer.critic_wg.set_loss_fn(process_loss)

    def values(self, batch: Any) -> bool:
        """The log-probs of the second model; verl's own fields of a critic are 0."""
        temperature = self.trainer.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
        ray.get(self.trainer.critic_wg.infer_batch(batch).futures)
        names = ["log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        found = response_from_nested(data["log_probs"], data["response_mask"])
        put_values(batch, {LOG_PROBS: found, "values": torch.zeros_like(found)})
        return True

    def report(self, metrics: dict[str, Any]) -> None:
        without_values(metrics)
