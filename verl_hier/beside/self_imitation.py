"""Self-imitation in verl's trainer: optimiser steps of the actor on rows that were kept, behind those of the step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics

from verl_hier.compat.extension import TrainerExtension, jagged
from verl_hier.compat.updates import ranks_of
from verl_hier.training.options import SelfImitationOptions
from verl_hier.training.self_imitation import (
    KINDS,
    Array,
    Baselines,
    GoodEpisodes,
    KeptRow,
    even_steps,
    loss_weights,
    weight_at,
)
from verl_hier.training.step import TrainingStep

PARTITION = "hier_self_imitation"
"""Partition of TransferQueue in which kept rows stand while they train."""
KEPT = "hier_kept_rows"
"""A field of a request: whether the rows of the batch were kept from earlier steps."""
READ = ("prompts", "responses", "response_mask", "old_log_probs", "advantages", "rollout_is_weights")
"""What a row is kept with, in the order of `KINDS`; verl has loss weights only where they are not all 1."""
REPORTED = ("pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm")
"""Ends of the names of verl's metrics of the actor that are reported of kept rows."""


def worker_with_kept_rows(base: Any) -> type:
    """`base`, verl's worker of the actor (verl/workers/engine_workers.py), whose learning rate's schedule takes one
    step for each step of the trainer, whatever else it trains in it."""

    class ActorWithKeptRows(base.actor_worker_cls):  # type: ignore[misc]
        def train_batch(self, data: TensorDict) -> TensorDict:
            if tu.get(data, KEPT, default=False):
                tu.assign_non_tensor(data, update_lr_scheduler=False)
            return super().train_batch(data)

    class WorkerWithKeptRows(base):  # type: ignore[misc]
        actor_worker_cls = ActorWithKeptRows

    WorkerWithKeptRows.__name__ = base.__name__
    return WorkerWithKeptRows


class SelfImitation(TrainerExtension):
    """The good episodes of `hier.self_imitation`."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._options: SelfImitationOptions = trainer.hier.self_imitation
        self._good = GoodEpisodes(self._options)

    def actor_worker(self, worker: type) -> type:
        return worker_with_kept_rows(worker)

    def after_update(self, batch: Any, step: TrainingStep, metrics: dict[str, Any]) -> None:
        """Train on rows of earlier steps, if there are enough, and keep the good ones of this step."""
        number, baseline = self.trainer.global_steps, self._good.baseline
        rows = self._good.due(number, self.trainer.hier.seed or 0)
        steps, size = even_steps(len(rows), metrics["hier/update/rows_per_step"], self._ranks)
        rows = rows[: steps * size]
        weight = weight_at(number, self._options)
        if rows:
            found = self._train(rows, size, weight, batch.extra_info)
            ages = [number - row.step for row in rows]
            metrics.update({f"hier/self_imitation/update/{name}": value for name, value in found.items()})
            metrics["hier/self_imitation/age"], metrics["hier/self_imitation/oldest"] = (
                float(np.mean(ages)),
                float(max(ages)),
            )
            metrics["hier/self_imitation/baseline"] = baseline
        table = step.ledger.table
        counted = np.asarray(table["episodes.trained"], bool)
        groups, scores = (np.asarray(table[f"episodes.{name}"])[counted] for name in ("group", "return"))
        self._good.add(self._rows_of(batch, step, number), Baselines.of(number, groups, scores))
        metrics["hier/self_imitation/weight"] = weight
        metrics["hier/self_imitation/trained"] = float(len(rows))
        metrics["hier/self_imitation/kept"] = float(len(self._good.rows))

    @property
    def _ranks(self) -> int:
        return ranks_of(self.trainer.actor_rollout_wg)

    def _rows_of(self, batch: Any, step: TrainingStep, number: int) -> list[KeptRow]:
        """The rows of a step, in the order of its tasks."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(READ))
        columns = {kind: data[name].unbind() for kind, name in zip(KINDS, READ, strict=True) if name in data}
        scores = np.asarray(step.ledger.table["episodes.return"])[step.ledger.episode]
        found: dict[int, KeptRow] = {}
        for place, row in enumerate(step.places(batch.keys)):
            if row < 0:
                continue
            tokens = {name: rows[place].numpy().astype(KINDS[name]) for name, rows in columns.items()}
            tokens.setdefault("weight", np.ones_like(tokens["log_probs"]))
            found[row] = KeptRow(number, float(scores[row]), **tokens)
        return [found[row] for row in sorted(found)]

    def _train(self, rows: Sequence[KeptRow], size: int, weight: float, asked: dict[str, Any]) -> dict[str, float]:
        """verl's update of the actor on kept rows, with so many rows for an optimiser step; returns its metrics."""
        keys = [f"{number:08d}_0_0" for number in range(len(rows))]
        epochs = self.trainer.update_options.epochs or self.trainer.config.actor_rollout_ref.actor.ppo_epochs
        try:
            content = content_of(rows, self._good.advantages(rows), loss_weights(rows, weight))
            meta = tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=content)
            sizes = {"global_batch_size": size, "mini_batch_size": size, "epochs": epochs}
            meta.extra_info.update(**{**asked, **sizes, KEPT: True})
            output = self.trainer.actor_rollout_wg.update_actor(meta)
        finally:
            tq.kv_clear(keys=keys, partition_id=PARTITION)
        reduced = reduce_metrics(output["metrics"])
        return {name.rpartition("/")[2]: float(value) for name, value in reduced.items() if name.endswith(REPORTED)}

    def save(self, checkpoint: Path) -> None:
        self._good.save(checkpoint)

    def load(self, checkpoint: Path) -> None:
        self._good.load(checkpoint)


def content_of(rows: Sequence[KeptRow], advantages: Sequence[Array], weights: Sequence[Array]) -> TensorDict:
    """What verl's update of the actor reads of rows.

    Args:
        rows: at least one.
        advantages: (L,) of the tokens of each.
        weights: (L,) their loss weights.
    """
    parts = [_fields(*each) for each in zip(rows, advantages, weights, strict=True)]
    nested = {name: jagged([torch.as_tensor(part[name]) for part in parts]) for name in parts[0]}
    return TensorDict(nested, batch_size=len(rows))


def _fields(row: KeptRow, advantage: Array, weight: Array) -> dict[str, Array]:
    sequence = np.concatenate([row.prompt, row.response]).astype(np.int64)
    mask = row.mask.astype(np.int64)
    return {
        "prompts": row.prompt.astype(np.int64),
        "responses": row.response.astype(np.int64),
        "input_ids": sequence,
        "position_ids": np.arange(len(sequence)),
        "response_mask": mask,
        "loss_mask": mask,
        "old_log_probs": row.log_probs,
        "advantages": advantage.astype(np.float32),
        "rollout_is_weights": weight.astype(np.float32),
    }
