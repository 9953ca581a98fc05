"""Adapters of the fixtures of policy losses and reward tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from verl_hier.testing.conformance.registry import plugin_module

Case = Mapping[str, Any]
Outputs = dict[str, Any]


class ActorConfig(dict[str, Any]):
    """The part of verl's actor configuration that a policy loss reads."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def aepo_policy_loss(case: Case) -> Outputs:
    """Loss, metrics and gradient; the entropy-aware advantage is applied before, as the estimator does."""
    import torch

    losses, module = plugin_module("losses.aepo"), plugin_module("estimators.aepo")
    advantages, mask = np.asarray(case["advantages"]), np.asarray(case["response_mask"])
    if case["enable_entropy_balanced_advantage"]:
        advantages = advantages * module.entropy_factor(case["entropy"], mask, 0.2)
    config = ActorConfig(
        clip_ratio=case["clip_low"],
        clip_ratio_low=case["clip_low"],
        clip_ratio_high=case["clip_high"],
        clip_ratio_c=case["clip_c"],
        global_batch_info={},
    )
    log_prob = torch.tensor(case["log_prob"], dtype=torch.float64, requires_grad=True)
    old = torch.tensor(case["old_log_prob"], dtype=torch.float64)
    loss, metrics = losses.clipped_loss(
        old,
        log_prob,
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(mask, dtype=torch.float64),
        case["loss_agg_mode"],
        config,
        None,
        balanced=case["enable_entropy_balanced_clipping"],
    )
    loss.backward()
    return {
        "loss": loss.item(),
        "clipfrac": metrics["actor/pg_clipfrac"],
        "ppo_kl": metrics["actor/ppo_kl"],
        "clipfrac_lower": metrics["actor/pg_clipfrac_lower"],
        "grad_log_prob": log_prob.grad.numpy() if log_prob.grad is not None else np.zeros(mask.shape),
    }


def arise(case: Case) -> Outputs:
    """Marginal value of a skill."""
    return {"out": plugin_module("estimators.arise").skill_value(case["unaided"], case["verify"])}


ADAPTERS: dict[str, Callable[[Case], Outputs]] = {
    "aepo_policy_loss": aepo_policy_loss,
    "arise": arise,
}
