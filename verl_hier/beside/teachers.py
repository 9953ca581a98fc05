"""The teachers of `hier.teachers` in verl's trainer: each is a worker group like that of verl's reference."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from omegaconf import open_dict
from verl.trainer.ppo.utils import Role
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from verl_hier.compat.extension import TrainerExtension
from verl_hier.compat.worker_groups import started_group
from verl_hier.training.options import TeacherOptions
from verl_hier.training.step import Rows, TrainingStep
from verl_hier.training.teachers import distilled, taught_tokens, teacher_metrics


def config_of_teacher(config: Any, model: str) -> Any:
    """`actor_rollout_ref` of a run, with the teacher as its model and without an adapter."""
    found = copy.deepcopy(config.actor_rollout_ref)
    with open_dict(found):
        found.model.update(path=model, tokenizer_path=None, lora_rank=0, lora_adapter_path=None)
    return found


class Teachers(TrainerExtension):
    """The teachers of `hier.teachers`, asked about every row of a step once."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._options: Mapping[str, TeacherOptions] = trainer.hier.teachers
        self._groups: dict[str, Any] = {}

    def choose_workers(self) -> None:
        # One more group of processes on the devices for each.
        self.trainer.resource_pool_manager.max_colocate_count += len(self._options)

    def build(self) -> None:
        worker = ray.remote(ActorRolloutRefWorker)
        for name, options in self._options.items():
            config = config_of_teacher(self.trainer.config, options.model)
            self._groups[name] = started_group(self.trainer, worker, Role.RefPolicy, config, f"teacher_{name}")

    def after_credit(self, batch: Any, step: TrainingStep, fields: dict[str, Rows], metrics: dict[str, Any]) -> None:
        """Add what the teachers say to the advantages; they share no turn, so that their order does not matter."""
        known = ["old_log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=known)
        policy, mask = (step.gathered(batch.keys, _rows(data[name])) for name in known)
        advantages = step.gathered(batch.keys, fields["advantages"])
        for name, options in self._options.items():
            teacher = step.gathered(batch.keys, self._log_probs(name, batch))
            taught = taught_tokens(step.ledger, options.roles) & (mask > 0)
            advantages = distilled(advantages, teacher, policy, taught, options)
            metrics.update(teacher_metrics(name, teacher, policy, taught))
        fields["advantages"] = step.scattered(batch.keys, advantages)

    def _log_probs(self, name: str, batch: Any) -> Rows:
        """The teacher's log-probs of the response tokens of each row, at the temperature of the policy's."""
        temperature = self.trainer.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
        self._groups[name].compute_ref_log_prob(batch)
        fields = ["log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        return _rows(response_from_nested(data["log_probs"], data["response_mask"]))


def _rows(nested: Any) -> Rows:
    return [np.asarray(row.float().numpy(), np.float64) for row in nested.unbind()]
