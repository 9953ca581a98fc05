"""AEPO's entropy-balanced clipping as a verl policy loss (arXiv 2510.14545), docs/methods/aepo.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import PolicyLossSpec
from verl_hier.training.policy_loss import clip_range, token_mean

if TYPE_CHECKING:
    import torch


def token_losses(
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    low: float,
    high: float,
    dual: float,
    balanced: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clipped loss of every token.

    Args:
        log_ratio: (B, L) log of the policy ratio.
        advantages: (B, L).
        low, high: the ratio is clipped to [1 - low, 1 + high].
        dual: bound of the loss for negative advantages, in units of the advantage.
        balanced: whether the upper bound is (1 + high) * ratio / stop_gradient(ratio): the same value, but a token
            beyond it keeps the gradient -A (1 + high) instead of none.

    Returns:
        (B, L) losses; (B, L) whether the clip was active; (B, L) whether the dual bound was.
    """
    import torch

    ratio = log_ratio.clamp(-20.0, 20.0).exp()
    bounded = ratio.clamp(1.0 - low, 1.0 + high)
    if balanced:
        bounded = torch.where(ratio > 1.0 + high, (1.0 + high) * ratio / ratio.detach(), bounded)
    plain, clipped = -advantages * ratio, -advantages * bounded
    worse, floor = torch.maximum(plain, clipped), -advantages * dual
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(worse, floor), worse)
    return losses, clipped > plain, (worse > floor) & negative


def entropy_balanced_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss with verl's signature: `actor_rollout_ref.actor.policy_loss.loss_mode: aepo`.

    Args and returns as verl's policy losses: (B, L) tensors, the aggregated loss and metrics.
    """
    return clipped_loss(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights, balanced=True
    )


def clipped_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    weights: torch.Tensor | None,
    balanced: bool,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Dual-clipped loss with or without the balanced upper bound; clip values from verl's actor config."""
    from verl.trainer.ppo.core_algos import agg_loss

    low, high = clip_range(config)
    log_ratio = log_prob - old_log_prob
    losses, clipped, dual = token_losses(
        log_ratio, advantages, low, high, config.get("clip_ratio_c", 3.0), balanced=balanced
    )
    if weights is not None:
        losses = losses * weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {
        "actor/pg_clipfrac": token_mean(clipped, response_mask),
        "actor/ppo_kl": token_mean(-log_ratio, response_mask),
        "actor/pg_clipfrac_lower": token_mean(dual, response_mask),
    }


@hookimpl
def hier_policy_losses() -> PolicyLossSpec:
    return PolicyLossSpec(
        "aepo",
        entropy_balanced_loss,
        summary="clipping whose upper bound keeps its gradient",
        source="arXiv 2510.14545 §4; compute_policy_loss_entropy_balanced_clipping",
        weights="token",
    )
