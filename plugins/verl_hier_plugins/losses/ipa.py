"""IPA's loss: log-likelihood of good turns, truncated ratio on bad ones (arXiv 2512.24873), docs/methods/ipa.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import PolicyLossSpec
from verl_hier.training.policy_loss import token_mean
from verl_hier_plugins.losses.at2po import mean_log_ratio

if TYPE_CHECKING:
    import torch


def ipa_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss with verl's signature: `actor_rollout_ref.actor.policy_loss.loss_mode: ipa`.

    -A log p for tokens with positive advantage; -min(r, 1) A log p for the others, where r is the geometric mean of
    the policy ratio over the token's turn, as a constant. A turn is a run of ones of the mask.
    """
    import torch
    from verl.trainer.ppo.core_algos import agg_loss

    log_ratio = (log_prob - old_log_prob).detach()
    ratio = mean_log_ratio(log_ratio, response_mask, "turn").clamp(max=20.0).exp()
    weight = torch.where(advantages > 0, torch.ones_like(ratio), ratio.clamp(max=1.0))
    losses = -weight * advantages * log_prob
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    total = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    truncated = (ratio > 1) & (advantages < 0)
    return total, {
        "actor/ppo_kl": token_mean(-log_ratio, response_mask),
        "actor/pg_clipfrac": token_mean(truncated, response_mask),
        "actor/pg_clipfrac_lower": 0.0,
    }


@hookimpl
def hier_policy_losses() -> PolicyLossSpec:
    return PolicyLossSpec(
        "ipa",
        ipa_loss,
        summary="log-likelihood of good turns, truncated policy ratio of the turn on bad ones",
        source="arXiv 2512.24873 (notes on the report); alibaba/ROLL agentic_actor_pg_worker.py",
        weights="token",
    )
