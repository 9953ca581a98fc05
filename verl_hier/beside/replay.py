"""The off-policy critic of whole turns in verl's trainer: verl's critic worker with a copy of the critic beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from numpy.typing import NDArray
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.utils import Role
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.utils.padding import response_from_nested

from verl_hier.beside.critic import worker_with_heads
from verl_hier.beside.probes import contexts_of, fields_of
from verl_hier.compat.extension import TrainerExtension, jagged, put_values, without_values
from verl_hier.compat.updates import ranks_of
from verl_hier.training.options import ReplayOptions
from verl_hier.training.probes import Asked, Question
from verl_hier.training.replay import Replay, Row, Turns, heads_of, learn, turn_values
from verl_hier.training.step import TrainingStep
from verl_hier.training.value_heads import mask_of, returns_of, values_of

SPREAD = 0.02
"""Standard deviation of the weights of new heads, as transformers begins. Two equal heads would stay equal."""
REPORTED = ("vf_loss", "grad_norm", "lr")
"""Ends of the names of verl's metrics of a critic that are reported."""
LAST = "last_of_batch"
"""A field of a request: whether its optimiser step is the last one of a batch."""


def worker_with_copy(heads: Sequence[str], rate: float) -> type:
    """The worker of a critic with these heads, and a copy of it that follows by `rate` after each optimiser step."""
    base: Any = worker_with_heads(heads)

    class WorkerWithCopy(base):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.engine.spread = SPREAD

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def reset(self) -> None:
            from verl_hier.engines.copies import SlowCopy

            super().reset()
            self._copy = SlowCopy(self.engine.module)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def exchange(self) -> None:
            self._copy.exchange()

        def train_batch(self, data: TensorDict) -> TensorDict:
            # verl would let the learning rate's schedule take a step each time.
            tu.assign_non_tensor(data, update_lr_scheduler=tu.get(data, LAST))
            output = super().train_batch(data)
            self._copy.follow(rate)
            return output

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
            super().save_checkpoint(local_path, *args, **kwargs)
            self._copy.save(Path(local_path))

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
            self._copy.load(Path(local_path))
            super().load_checkpoint(local_path, *args, **kwargs)

    WorkerWithCopy.__name__ = base.__name__
    return WorkerWithCopy


def loss_of(config: Any, heads: Sequence[str]) -> Any:
    """The loss of such a critic: the sum of the squared errors of its heads. Nothing is clipped, since targets come
    from the copy.

    Args:
        config: verl's configuration of the critic.
        heads: names of the heads.
    """
    from verl_hier.engines.value_heads import value_heads_loss

    return partial(value_heads_loss, replace(config, cliprange_value=float("inf")), dict.fromkeys(heads, 1.0))


class WorkerCritic:
    """`training.replay.TurnCritic` on a group of such workers."""

    def __init__(self, group: Any, heads: Sequence[str], ranks: int) -> None:
        """
        Args:
            group: verl's worker group of the critic.
            heads: names of its heads.
            ranks: data-parallel ranks, each of which gets equally many rows.
        """
        self._group, self._heads, self._ranks = group, heads, ranks

    def values(self, rows: Sequence[Row], *, copy: bool) -> list[NDArray[Any]]:
        batch = self._batch(rows, compute_loss=False)
        if copy:
            self._group.exchange()
        output = self._group.infer_batch(batch).get()
        if copy:
            self._group.exchange()
        found = [response_from_nested(output[values_of(head)], batch["response_mask"]) for head in self._heads]
        values = zip(*(head.unbind() for head in found), strict=True)
        return [torch.stack(row).double().numpy() for _, row in zip(rows, values, strict=False)]

    def fit(self, rows: Sequence[Row], targets: Sequence[NDArray[Any]], *, last: bool) -> Mapping[str, float]:
        batch = self._batch(rows, **{LAST: last})
        size = len(batch)
        extra = [np.full_like(targets[0], np.nan)] * (size - len(rows))
        for head, name in enumerate(self._heads):
            target = [torch.as_tensor(found[head], dtype=torch.float32) for found in (*targets, *extra)]
            batch[mask_of(name)] = jagged([part.isfinite().float() for part in target])
            batch[returns_of(name)] = jagged([part.nan_to_num() for part in target])
            batch[values_of(name)] = jagged([torch.zeros_like(part) for part in target])
        request = {"global_batch_size": size, "mini_batch_size": size, "epochs": 1, "dataloader_kwargs": {}}
        tu.assign_non_tensor(batch, **request)
        metrics = rename_dict(self._group.train_mini_batch(batch).get()["metrics"], "critic/")
        return {name: value for name, value in reduce_metrics(metrics).items() if name.endswith(REPORTED)}

    def _batch(self, rows: Sequence[Row], **request: Any) -> TensorDict:
        """Rows as verl's critic reads them. What stands behind a text has no influence on the value in front of it."""
        filled = [*rows, *([rows[0]] * (-len(rows) % self._ranks))]
        fields = fields_of([Question(0, row.context.astype(np.int64), np.append(row.text, 0)) for row in filled])
        batch: TensorDict = tu.get_tensordict(dict(fields.items()), {"temperature": 1.0, **request})
        return batch


class ReplayCritic(TrainerExtension):
    """The critic of `hier.replay`."""

    critic_update = "itself"
    _replay: Replay

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._options: ReplayOptions = trainer.hier.replay
        self.heads = heads_of(self._options)

    def choose_workers(self) -> None:
        worker = worker_with_copy(self.heads, self._options.polyak)
        self.trainer.role_worker_mapping[Role.Critic] = ray.remote(worker)

    def prepare(self) -> None:
        folder = Path(str(self.trainer.config.trainer.default_local_dir)) / "replay"
        self._replay = Replay(folder, self._options.transitions)

    def begin(self) -> None:
        config = omega_conf_to_dataclass(self.trainer.config.critic)
        self.trainer.critic_wg.set_loss_fn(loss_of(config, self.heads))

    def values(self, batch: Any) -> bool:
        """Nothing yet; verl's own field of a critic is 0."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        put_values(batch, {"values": jagged([torch.zeros(len(row)) for row in data["response_mask"].unbind()])})
        return True

    def before_credit(self, batch: Any, step: TrainingStep, metrics: dict[str, Any]) -> Sequence[Asked]:
        """Train the critic, and add what it says of the step to its turn table."""
        contexts, group = contexts_of(self.trainer, batch, step), self.trainer.critic_wg
        critic = WorkerCritic(group, self.heads, ranks_of(group, "train"))
        fresh, places = Turns.of(contexts)
        self._replay.add(fresh)
        generator = np.random.default_rng([self.trainer.hier.seed or 0, self._replay.newest])
        metrics.update(learn(critic, self._replay, fresh, self._options, generator))
        turn_values(critic, fresh, places, contexts.table, self._options)
        return ()

    def report(self, metrics: dict[str, Any]) -> None:
        without_values(metrics)

    def save(self, checkpoint: Path) -> None:
        self._replay.save(checkpoint)

    def load(self, checkpoint: Path) -> None:
        self._replay.load(checkpoint)
