"""AT²PO's clipped loss with one policy ratio a turn (arXiv 2601.04767), docs/methods/at2po.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import PolicyLossSpec
from verl_hier.training.policy_loss import PolicyLoss, clip_range, token_mean

if TYPE_CHECKING:
    import torch


def turn_numbers(mask: torch.Tensor) -> torch.Tensor:
    """(B, L) number of the turn of each token, from 1 in each row; 0 where the mask (B, L) is 0. A turn is a run of
    ones."""
    inside = mask > 0
    starts = inside.clone()
    starts[:, 1:] &= ~inside[:, :-1]
    return starts.cumsum(-1) * inside


def turn_sums(values: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """(B, K + 1) sum of values (B, L) over each turn of a row, for the K = ceil(L / 2) turns that a row can have; the
    first column is not part of any."""
    # The number of turns that there are would have to be waited for.
    sums = values.new_zeros(len(turns), (turns.shape[1] + 1) // 2 + 1)
    return sums.scatter_add(1, turns, values * (turns > 0))


def mean_log_ratio(log_ratio: torch.Tensor, mask: torch.Tensor, per: Literal["turn", "row"]) -> torch.Tensor:
    """(B, L) mean of the log-ratios (B, L) over the turn or the row of each token."""
    turns = turn_numbers(mask) if per == "turn" else (mask > 0).long()
    count = turn_sums(mask.to(log_ratio.dtype), turns).clamp(min=1)
    return (turn_sums(log_ratio, turns) / count).gather(1, turns)


def turn_shares(log_ratio: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    """How evenly the change of the policy is spread over the turns of a row.

    Returns:
        the mean over rows of the entropy of softmax(sum of a turn / sum of the row) over the logarithm of the number
        of turns, 0 for a row with one turn; and the number of rows with at most one turn.
    """
    import torch

    turns = turn_numbers(mask)
    sums = turn_sums(log_ratio, turns)
    count, whole = turns.amax(1), sums.sum(1)
    place = torch.arange(sums.shape[1], device=sums.device)
    there = (place > 0) & (place <= count[:, None])
    several = (count > 1) & (whole != 0)
    share = torch.where(there, sums / torch.where(whole == 0, 1.0, whole)[:, None], -torch.inf).softmax(1)
    entropy = -(share * (share + 1e-10).log()).sum(1) / count.clamp(min=2).log()
    total = torch.where(several, entropy, 0.0).sum()
    return float(total) / max(len(mask), 1), float((count <= 1).sum())


def turn_loss(per: Literal["turn", "row"] = "turn", soft: bool = False) -> PolicyLoss:
    """The policy loss, with verl's signature.

    Args:
        per: whether the ratio is the geometric mean over the turn or, as GSPO's, over the row.
        soft: whether a clipped ratio keeps its gradient: the bound times ratio / stop_gradient(ratio).
    """

    def loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "seq-mean-token-mean",
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Clipped loss of every token with the ratio of its turn; clip values from verl's actor config."""
        import torch
        from verl.trainer.ppo.core_algos import agg_loss

        low, high = clip_range(config)
        log_ratio = log_prob - old_log_prob
        mean = mean_log_ratio(log_ratio.detach(), response_mask, per)
        # The value is the turn's ratio, the gradient that of the token's own log-prob.
        ratio = (log_prob - log_prob.detach() + mean).clamp(max=10.0).exp()
        bounded = ratio.clamp(1.0 - low, 1.0 + high)
        if soft:
            # A ratio within the bounds stays exactly itself, so that rounding is not counted as clipping.
            kept = bounded.detach() / ratio.detach() * ratio
            bounded = torch.where(bounded == ratio, ratio, kept)
        plain, clipped = -advantages * ratio, -advantages * bounded
        losses = torch.maximum(plain, clipped)
        if rollout_is_weights is not None:
            losses = losses * rollout_is_weights
        total = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
        evenness, single = turn_shares(log_ratio.detach(), response_mask)
        return total, {
            "actor/pg_clipfrac": token_mean(clipped > plain, response_mask),
            "actor/ppo_kl": token_mean(-log_ratio, response_mask),
            "actor/pg_clipfrac_lower": 0.0,
            "actor/turn_kl_entropy": evenness,
            "actor/single_turn_count": single,
        }

    return loss


@hookimpl
def hier_policy_losses() -> list[PolicyLossSpec]:
    source = "arXiv 2601.04767; zzfoutofspace/ATPO core_algos.py"
    return [
        PolicyLossSpec(
            "at2po",
            turn_loss(),
            summary="clipped loss with one policy ratio a turn",
            source=source,
            weights="token",
        ),
        PolicyLossSpec(
            "at2po_soft",
            turn_loss(soft=True),
            summary="the same, and clipped turns keep their gradient",
            source=source,
            weights="token",
        ),
        PolicyLossSpec(
            "gspo_soft",
            turn_loss("row", soft=True),
            summary="one policy ratio a row (GSPO), and clipped rows keep their gradient",
            source=source,
            weights="token",
        ),
    ]
