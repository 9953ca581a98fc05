"""HisPO, a two-level importance mask (LongCat-Flash-Prover), docs/methods/hispo.md.

Read in notes on the report (confidence C), so the bands are our choice; a plugin may register `hispo_loss` with others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import PolicyLossSpec
from verl_hier.training.policy_loss import PolicyLoss, clip_range, token_mean

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bands:
    """Ratios inside which a token is trained."""

    sequence: tuple[float, float] = (0.5, 2.0)
    """Geometric mean of the ratio over the sequence's tokens."""
    token: tuple[float, float] = (0.5, 2.0)
    """Ratio of the token itself."""


def importance_mask(log_ratio: torch.Tensor, mask: torch.Tensor, bands: Bands) -> torch.Tensor:
    """(B, L) bool: tokens of `mask` whose sequence and whose own ratio (log, (B, L)) lie inside the bands."""
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    sequence = ((log_ratio * mask).sum(-1, keepdim=True) / count).exp()
    token = log_ratio.exp()
    inside = (sequence >= bands.sequence[0]) & (sequence <= bands.sequence[1])
    return mask.bool() & inside & (token >= bands.token[0]) & (token <= bands.token[1])


def hispo_loss(bands: Bands) -> PolicyLoss:
    """The policy loss for some bands, with verl's signature."""

    def loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Clipped loss of the tokens inside the bands; the others contribute 0 and stay in the denominator.

        The ratio is policy over old policy. `rollout_is_weights` are loss weights, which say nothing about how far
        training and rollout engine are apart.
        """
        import torch
        from verl.trainer.ppo.core_algos import agg_loss

        low, high = clip_range(config)
        log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)
        kept = importance_mask(log_ratio.detach(), response_mask, bands)
        ratio = log_ratio.exp()
        losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high))
        if rollout_is_weights is not None:
            losses = losses * rollout_is_weights
        losses = torch.where(kept, losses, torch.zeros_like(losses))
        total = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
        return total, {"actor/hispo_kept_share": token_mean(kept, response_mask)}

    return loss


@hookimpl
def hier_policy_losses() -> PolicyLossSpec:
    return PolicyLossSpec(
        "hispo",
        hispo_loss(Bands()),
        summary="clipped loss of tokens whose sequence and own ratio lie inside bands",
        source="LongCat-Flash-Prover (reading notes), confidence C",
        weights="token",
    )
