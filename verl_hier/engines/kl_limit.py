"""Optimiser steps that are left out where the policy has already moved too far from the one that was sampled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.device import get_device_id
from verl.workers.utils.padding import response_from_nested

from verl_hier.training.limits import exceeds


class Divergence:
    """A loss function of verl, beside which the divergence from the old policy is added up.

    Attributes:
        sums: over the trained tokens that it has seen, or over the actions that they make, r - 1 - log r for the policy
            ratio r, and their number.
    """

    def __init__(self, loss_function: Callable[..., Any], per_action: bool = False) -> None:
        self._loss = loss_function
        self._per_action = per_action
        self.sums = torch.zeros(2, dtype=torch.float64, device=get_device_id())

    def __call__(self, model_output: Any, data: TensorDict, dp_group: Any = None) -> Any:
        new = response_from_nested(model_output["log_probs"], data["response_mask"]).values().detach().double()
        chosen = data["response_mask"].values() > 0
        log_ratio = (new - data["old_log_probs"].values().to(new))[chosen]
        if self._per_action:
            log_ratio = action_sums(log_ratio, chosen, data["response_mask"].offsets())
        self.sums += torch.stack([(log_ratio.exp() - 1 - log_ratio).sum(), log_ratio.new_tensor(len(log_ratio))])
        return self._loss(model_output=model_output, data=data, dp_group=dp_group)


def action_sums(values: torch.Tensor, chosen: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """(K,) sums over actions, the runs of chosen tokens inside a row.

    Args:
        values: of the chosen tokens.
        chosen: (N,) whether a token is trained, of all rows one after the other.
        offsets: (R + 1,) where each row begins, and the end.
    """
    before = torch.nn.functional.pad(chosen[:-1], (1, 0))
    before[offsets[:-1][offsets[:-1] < len(before)].to(before.device)] = False
    number = (chosen & ~before).cumsum(0)[chosen] - 1
    return values.new_zeros(int(number.max()) + 1 if len(number) else 0).index_add(0, number, values)


def train_within(
    engine: Any, limit: float, data: TensorDict, loss_function: Callable[..., Any], per_action: bool = False
) -> Any:
    """verl's `BaseEngine.train_batch` without its optimiser step where the mini-batch is further away than the limit.

    Args:
        engine: of the actor.
        limit: mean of r - 1 - log r over the trained tokens of all ranks, an estimate of the KL divergence.
        data: the mini-batch.
        loss_function: of the actor.
        per_action: the mean is over actions, whose ratios are products over their tokens.
    """
    measured = Divergence(loss_function, per_action)
    engine.optimizer_zero_grad()
    outputs = engine.forward_backward_batch(data, measured, forward_only=False)
    torch.distributed.all_reduce(measured.sums, group=engine.get_data_parallel_group())
    divergence = float(measured.sums[0] / measured.sums[1].clamp(min=1))
    far = exceeds(divergence, limit)
    norm = 0.0 if far else engine.optimizer_step()
    if engine.is_mp_src_rank_with_outputs():
        outputs["metrics"] |= {"grad_norm": norm, "kl_from_old": [divergence], "left_out": [float(far)]}
    return outputs


def worker_with_limit(base: Any, limit: float, per_action: bool = False) -> type:
    """`base`, verl's worker of the actor (verl/workers/engine_workers.py), whose actor trains within the limit."""

    class ActorWithLimit(base.actor_worker_cls):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.engine.train_batch = partial(train_within, self.engine, limit, per_action=per_action)

    class WorkerWithLimit(base):  # type: ignore[misc]
        actor_worker_cls = ActorWithLimit

    WorkerWithLimit.__name__ = base.__name__
    return WorkerWithLimit
