"""MARFT's clipped loss, one ratio an action, a product over its tokens (arXiv 2504.16129), docs/methods/marft.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import PolicyLossSpec
from verl_hier.training.policy_loss import clip_range, token_mean
from verl_hier_plugins.losses.at2po import turn_numbers, turn_sums

if TYPE_CHECKING:
    import torch

LONGEST_LOG_RATIO = 20.0
"""Beyond this the ratio of an action is bounded, as verl bounds that of a token."""


def action_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Clipped loss of each action, a run of ones in the mask; each of its tokens has the whole of it.

    With `hier.guards.weight_by: turn`, under which the tokens of an action share one vote, the sum is the mean over
    actions of the released code, and a long action has a longer gradient. All tensors are (B, L), as for verl's losses.
    """
    import torch
    from verl.trainer.ppo.core_algos import agg_loss

    low, high = clip_range(config)
    turns = turn_numbers(response_mask)
    summed = turn_sums(log_prob - old_log_prob, turns).gather(1, turns)
    summed = summed.clamp(-LONGEST_LOG_RATIO, LONGEST_LOG_RATIO)
    ratio = summed.exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    losses = torch.maximum(plain, clipped)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    total = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    first = turns != torch.nn.functional.pad(turns[:, :-1], (1, 0))
    actions = first & (turns > 0)
    return total, {
        "actor/pg_clipfrac": token_mean(clipped > plain, actions),
        "actor/ppo_kl": token_mean(ratio - 1 - summed, actions),
        "actor/pg_clipfrac_lower": 0.0,
    }


@hookimpl
def hier_policy_losses() -> PolicyLossSpec:
    return PolicyLossSpec(
        "marft",
        action_loss,
        summary="clipped loss with the policy ratio of a whole action; meant for weight_by: turn",
        source="arXiv 2504.16129; jwliao-ai/MARFT appo_trainer.py, normalization_mode sum",
        weights="token",
    )
