"""The off-policy critic of whole turns in verl's trainer: verl's critic worker with a copy of the critic beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from verl_hier.compat.critic import worker_with_heads
from verl_hier.compat.probes import fields_of
from verl_hier.compat.run_state import checkpoint_of
from verl_hier.compat.updates import ranks_of
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.probes import Contexts, Question
from verl_hier.training.replay import Replay, Row, Turns, heads_of, learn, turn_values
from verl_hier.training.value_heads import mask_of, returns_of, values_of

if TYPE_CHECKING:
    from verl.trainer.ppo.v1 import PPOTrainer as _Base
else:
    _Base = object

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
            batch[mask_of(name)] = _jagged([part.isfinite().float() for part in target])
            batch[returns_of(name)] = _jagged([part.nan_to_num() for part in target])
            batch[values_of(name)] = _jagged([torch.zeros_like(part) for part in target])
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


def _jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class ReplayMixin(_Base):  # type: ignore[misc]
    """What our trainers do differently where the recipe has a replay.

    Overridden seams (verl/trainer/ppo/v1/trainer_base.py): `_init_resource_pool_mgr`, `_setup`, `_compute_values`,
    `_update_critic`, `_save_checkpoint`, `_load_checkpoint`.
    """

    hier: HierConfig
    value_heads: Mapping[str, float]
    critic_wg: Any
    _replay: Replay

    @property
    def critic_heads(self) -> Sequence[str]:
        """Names of the critic's heads, in order; none for verl's own critic."""
        return [*self.value_heads] if self.hier.replay is None else heads_of(self.hier.replay)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        options = self.hier.replay
        if options is not None:
            worker = worker_with_copy(heads_of(options), options.polyak)
            self.role_worker_mapping[Role.Critic] = ray.remote(worker)

    def _setup(self) -> None:
        options = self.hier.replay
        if options is None:
            super()._setup()
            return
        folder = Path(str(self.config.trainer.default_local_dir)) / "replay"
        # Before verl's part, which loads the checkpoint.
        self._replay = Replay(folder, options.transitions)
        super()._setup()
        self.critic_wg.set_loss_fn(loss_of(omega_conf_to_dataclass(self.config.critic), heads_of(options)))

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Nothing yet; verl's own field of a critic is 0."""
        if self.hier.replay is None:
            return super()._compute_values(batch, metrics)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        nothing = _jagged([torch.zeros(len(row)) for row in data["response_mask"].unbind()])
        fields = TensorDict({"values": nothing}, batch_size=len(batch))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def _learn_values(self, contexts: Contexts, metrics: dict[str, Any]) -> None:
        """Train the critic, and add what it says of the step to its turn table.

        Args:
            contexts: of the step.
            metrics: to which those of the critic are added.
        """
        options = self.hier.replay
        assert options is not None
        critic = WorkerCritic(self.critic_wg, heads_of(options), ranks_of(self.critic_wg, "train"))
        fresh, places = Turns.of(contexts)
        self._replay.add(fresh)
        generator = np.random.default_rng([self.hier.seed or 0, self._replay.newest])
        metrics.update(learn(critic, self._replay, fresh, options, generator))
        turn_values(critic, fresh, places, contexts.table, options)

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """It has learned before the step was credited."""
        return batch if self.hier.replay is not None else super()._update_critic(batch, metrics)

    def _save_checkpoint(self) -> None:
        if self.hier.replay is not None:
            folder = Path(str(self.config.trainer.default_local_dir)) / f"global_step_{self.global_steps}"
            self._replay.save(folder)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        checkpoint = checkpoint_of(self.config.trainer)
        if self.hier.replay is not None and checkpoint is not None:
            self._replay.load(checkpoint)
