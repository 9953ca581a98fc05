"""The second model of an implicit process reward: verl's critic worker with a language model in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.utils import Role
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from verl_hier.recipe.schema import HierConfig
from verl_hier.training.process_reward import LOG_PROBS

if TYPE_CHECKING:
    from verl.trainer.ppo.v1 import PPOTrainer as _Base
else:
    _Base = object

OF_VALUES = ("critic/values/", "critic/vf_explained_var")
"""What verl's metrics call the values of a critic, of which there are none."""


class SecondModelWorker(TrainingWorker):  # type: ignore[misc]
    """verl's training worker with a language model (verl/workers/engine_workers.py)."""

    def __init__(self, config: Any) -> None:
        from verl_hier.engines.process_reward import MODEL_TYPE

        super().__init__(replace(config, model_type=MODEL_TYPE))


class ProcessRewardMixin(_Base):  # type: ignore[misc]
    """What our trainers do differently where the recipe has a process reward.

    Overridden seams (verl/trainer/ppo/v1/trainer_base.py): `_init_resource_pool_mgr`, `_setup`, `_compute_values`,
    `_compute_metrics`.
    """

    hier: HierConfig
    critic_wg: Any

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.hier.process_reward is not None:
            self.role_worker_mapping[Role.Critic] = ray.remote(SecondModelWorker)

    def _setup(self) -> None:
        super()._setup()
        if self.hier.process_reward is not None:
            from verl_hier.engines.process_reward import process_loss

            self.critic_wg.set_loss_fn(process_loss)

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The log-probs of the second model; verl's own fields of a critic are 0."""
        if self.hier.process_reward is None:
            return super()._compute_values(batch, metrics)
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
        ray.get(self.critic_wg.infer_batch(batch).futures)
        names = ["log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        found = response_from_nested(data["log_probs"], data["response_mask"])
        fields = TensorDict({LOG_PROBS: found, "values": torch.zeros_like(found)}, batch_size=len(batch))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        if self.hier.process_reward is not None or self.hier.replay is not None:
            for name in [name for name in metrics if name.startswith(OF_VALUES)]:
                del metrics[name]
