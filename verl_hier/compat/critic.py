"""A critic with the heads of `hier.value_heads`, in the place of verl's with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.utils import Role
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from verl_hier.training.value_heads import values_of

if TYPE_CHECKING:
    from verl.trainer.ppo.v1 import PPOTrainer as _Base
else:
    _Base = object


def worker_with_heads(heads: Iterable[str]) -> type:
    """verl's training worker, which builds an engine with these heads (verl/workers/engine_workers.py)."""
    names = tuple(heads)

    class WorkerWithHeads(TrainingWorker):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            from verl_hier.engines.value_heads import MODEL_TYPE, register_engines

            register_engines()
            super().__init__(replace(config, model_type=MODEL_TYPE))
            self.engine.heads = names

    WorkerWithHeads.__name__ = TrainingWorker.__name__
    return WorkerWithHeads


class CriticMixin(_Base):  # type: ignore[misc]
    """What our trainers do differently where the critic has heads.

    Overridden seams (verl/trainer/ppo/v1/trainer_base.py): `_init_resource_pool_mgr`, `_setup`, `_compute_values`.
    """

    value_heads: Mapping[str, float]
    """`hier.value_heads`."""

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.value_heads and Role.Critic in self.role_worker_mapping:
            self.role_worker_mapping[Role.Critic] = ray.remote(worker_with_heads(self.value_heads))

    def _setup(self) -> None:
        super()._setup()
        if self.value_heads and self.use_critic:
            from verl_hier.engines.value_heads import value_heads_loss

            config = omega_conf_to_dataclass(self.config.critic)
            self.critic_wg.set_loss_fn(partial(value_heads_loss, config, dict(self.value_heads)))

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """As verl's, for each head; verl's own metrics of values are those of the first one."""
        if not self.value_heads:
            return super()._compute_values(batch, metrics)
        batch.extra_info.update(compute_loss=False, temperature=self.config.actor_rollout_ref.rollout.temperature)
        ray.get(self.critic_wg.infer_batch(batch).futures)
        fields = [values_of(head) for head in self.value_heads]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=[*fields, "response_mask"]
        )
        found = {field: response_from_nested(data[field], data["response_mask"]) for field in fields}
        found["values"] = found[fields[0]]
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(found, batch_size=len(batch))
        )
        return batch
