"""A critic with the heads of `hier.value_heads`, in the place of verl's with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.utils import Role
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from verl_hier.compat.extension import TrainerExtension, put_values
from verl_hier.training.value_heads import values_of


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


class CriticHeads(TrainerExtension):
    """The heads of `hier.value_heads`."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._weights: Mapping[str, float] = trainer.hier.value_heads
        self.heads = [*self._weights]

    def choose_workers(self) -> None:
        mapping = self.trainer.role_worker_mapping
        if Role.Critic in mapping:
            mapping[Role.Critic] = ray.remote(worker_with_heads(self.heads))

    def begin(self) -> None:
        if self.trainer.use_critic:
            from verl_hier.engines.value_heads import value_heads_loss

            config = omega_conf_to_dataclass(self.trainer.config.critic)
            self.trainer.critic_wg.set_loss_fn(partial(value_heads_loss, config, dict(self._weights)))

    def values(self, batch: Any) -> bool:
        """As verl's, for each head; verl's own metrics of values are those of the first one."""
        temperature = self.trainer.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update(compute_loss=False, temperature=temperature)
        ray.get(self.trainer.critic_wg.infer_batch(batch).futures)
        fields = [values_of(head) for head in self.heads]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=[*fields, "response_mask"]
        )
        found = {field: response_from_nested(data[field], data["response_mask"]) for field in fields}
        put_values(batch, {**found, "values": found[fields[0]]})
        return True
