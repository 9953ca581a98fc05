"""Optimiser steps: how many a batch makes, which rows each of them trains, and how verl is told so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from verl_hier.compat.extension import TrainerExtension
from verl_hier.compat.queue import uid_of_row
from verl_hier.recipe.engine import wants_tree
from verl_hier.recipe.schema import HierConfig
from verl_hier.rollout.seeds import generator
from verl_hier.training.mini_batches import (
    Parts,
    arrange,
    divide,
    even_parts,
    left_over,
    padded_size,
    require_rows,
    whole_groups,
)
from verl_hier.training.options import UpdateOptions

if TYPE_CHECKING:
    from verl.trainer.ppo.v1 import PPOTrainer as _Base
else:
    _Base = object


@dataclass(frozen=True)
class _Division:
    """The mini-batches of one batch.

    Attributes:
        parts: rows of each mini-batch, before verl pads and reorders the batch.
        actor, critic: optimiser steps of either in one epoch; both divide the number of parts.
    """

    parts: Parts
    actor: int
    critic: int


def groups_of(batch: Any) -> list[str | None]:
    """The task of each row of a batch of verl's trainer; None for rows of padding."""
    rows = zip(batch.keys, batch.tags, strict=True)
    return [None if tag.get("is_padding", False) else uid_of_row(key) for key, tag in rows]


def workloads_of(batch: Any) -> torch.Tensor:
    """(R,) what each row of a batch of verl's trainer costs, as verl reckons it when it balances."""
    return calculate_workload(torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64))


def ranks_of(workers: Any, mesh: str = "actor") -> int:
    """Data-parallel ranks of the actor, or of a critic (`train`); verl keeps the answer of the worker group."""
    if mesh not in workers._dispatch_info:
        workers._dispatch_info[mesh] = workers._query_dispatch_info(mesh)
    return int(max(workers._dispatch_info[mesh])) + 1


class _Requests:
    """A worker group whose updates make a fixed number of optimiser steps.

    verl derives that number from the number of rows (trainer_base.py, `_update_actor`); here only the sizes and the
    epochs in the request are replaced, the request itself stays verl's.
    """

    def __init__(self, group: Any, steps: int, epochs: int | None) -> None:
        self._group = group
        self._steps = steps
        self._epochs = epochs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def _sized(self, batch: Any) -> Any:
        size = len(batch) // self._steps
        batch.extra_info.update(mini_batch_size=size, global_batch_size=size)
        if self._epochs is not None:
            batch.extra_info["epochs"] = self._epochs
        return batch

    def update_actor(self, batch: Any) -> Any:
        return self._group.update_actor(self._sized(batch))

    def train_mini_batch(self, batch: Any) -> Any:
        return self._group.train_mini_batch(self._sized(batch))


class UpdateMixin(_Base):
    """The seams of verl's trainer that decide on mini-batches; see `HierTrainerMixin`."""

    hier: HierConfig
    update_options: UpdateOptions
    extensions: Sequence[TrainerExtension]
    actor_rollout_wg: Any
    critic_wg: Any
    _division: _Division

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Pad and balance as verl does, which is all where there is one mini-batch; else share out each of them.

        Args:
            batch: rows whose keys begin with their task.
        """
        keys = list(batch.keys)
        self._division = self._divide([uid_of_row(key) for key in keys])
        padded = super()._balance_batch(batch, metrics, *args, **kwargs)
        division = self._division
        if len(division.parts) > 1 or self._keeps_groups:
            self._share_out(padded, [[keys[row] for row in part] for part in division.parts])
        actor = self.config.actor_rollout_ref.actor
        epochs = self.update_options.epochs or actor.ppo_epochs
        metrics["hier/update/steps"] = float(division.actor * epochs)
        metrics["hier/update/rows_per_step"] = len(keys) / division.actor
        metrics["hier/rows/trained"] = float(len(keys))
        metrics["hier/rows/padding"] = float(len(padded) - len(keys))
        return padded

    def _share_out(self, padded: Any, parts: list[list[str]]) -> None:
        """Give each mini-batch its rows, and each rank an equal share of their tokens.

        Args:
            padded: the batch, which is put into a new order.
            parts: keys of the rows of each mini-batch; the other rows are padding.
        """
        places = {key: place for place, key in enumerate(padded.keys)}
        workloads = workloads_of(padded)
        groups = groups_of(padded)

        def balance(rows: list[int], ranks: int) -> list[list[int]]:
            if self._keeps_groups:
                shares = whole_groups([groups[row] for row in rows], workloads[rows].tolist(), ranks)
                return [[rows[i] for i in share] for share in shares]
            found = get_seqlen_balanced_partitions(workloads[rows], k_partitions=ranks, equal_size=True)
            return [[rows[i] for i in share] for share in found]

        rows = [[places[key] for key in part] for part in parts]
        fillers = sorted(set(places.values()) - {place for part in rows for place in part})
        padded.reorder(arrange(rows, fillers, ranks_of(self.actor_rollout_wg), balance))

    def _divide(self, tasks: list[str]) -> _Division:
        """Mini-batches of actor and critic for rows of these tasks."""
        prompts = self.config.data.train_batch_size // self.parameter_sync_step
        require_rows(self.update_options, ranks_of(self.actor_rollout_wg))
        if self.update_options.mini_batch.given or self.update_options.keep_tasks_together:
            parts = divide(self.update_options, tasks, prompts)
            return _Division(parts, len(parts), len(parts))
        config = self.config
        actor = max(1, prompts // config.actor_rollout_ref.actor.ppo_mini_batch_size)
        critic = max(1, prompts // config.critic.ppo_mini_batch_size) if self.use_critic else actor
        if math.lcm(actor, critic) > len(tasks):
            actor = critic = min(actor, len(tasks))
        return _Division(even_parts(len(tasks), math.lcm(actor, critic)), actor, critic)

    def _left_out(self, policies: Sequence[str], step: int, metrics: dict[str, Any]) -> list[int]:
        """Numbers of the rows of a step that are not trained; see `UpdateOptions.remainder`.

        Args:
            policies: the policy of each row.
            step: of the trainer.
            metrics: how many they are is added.
        """
        if self.update_options.remainder == "train":
            return []
        chance = generator(self.hier.seed or 0, "rows left out", step)
        ranks, found = ranks_of(self.actor_rollout_wg), list[int]()
        for policy in sorted(set(policies)):
            rows = [row for row, trained_by in enumerate(policies) if trained_by == policy]
            found += left_over(rows, ranks, chance)
        metrics["hier/rows/left_out"] = float(len(found))
        return found

    @property
    def _keeps_groups(self) -> bool:
        """Whether the rows of a task go to one rank, because they are forwarded together there."""
        return wants_tree(self.config)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The size itself to which verl has to pad: it is never below the number of rows."""
        return padded_size(self._division.parts, dp_size)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        with self._requests("actor_rollout_wg", self._division.actor, self.update_options.epochs):
            return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        ways = {extension.critic_update for extension in self.extensions}
        if "itself" in ways:
            return batch
        steps, epochs = (1, 1) if "one" in ways else (self._division.critic, self.update_options.epochs)
        with self._requests("critic_wg", steps, epochs):
            return super()._update_critic(batch, metrics)

    @contextmanager
    def _requests(self, attribute: str, steps: int, epochs: int | None) -> Iterator[None]:
        group = getattr(self, attribute)
        setattr(self, attribute, _Requests(group, steps, epochs))
        try:
            yield
        finally:
            setattr(self, attribute, group)
