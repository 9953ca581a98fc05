"""AEPO, entropy-aware advantage (arXiv 2510.14545), docs/methods/aepo.md.

The clipping that belongs to it is the policy loss `losses/aepo.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import RETURN_COLUMNS, Credit, Floats, episode_advantage, episodes_to_turns
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class AEPOOptions:
    """Defaults are the released code's."""

    entropy_weight: NonNegative = 0.2
    """Weight of the standardised token entropy in the factor of the advantage; 0 is GRPO."""
    entropy: Literal["auto", "entropy", "surprise"] = "auto"
    """Source of the token entropy: the token column `entropy`, or the surprise -log p of the sampled token, which has
    the entropy as its mean; `auto` takes the column where the table has it."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation of the returns."""


def advantage(table: TurnTable, options: AEPOOptions) -> Credit:
    """Credit per token: the episode's z-score times 1 + weight * standardised entropy of the token."""
    episode = episode_advantage(table, eps=options.eps)
    turns = episodes_to_turns(table, episode)
    turn = np.asarray(table["tokens.turn"])
    mask = np.asarray(table["trained"], bool)[turn]
    factor = entropy_factor(token_entropy(table, options), mask, options.entropy_weight)
    return Credit(turns[turn] * factor, per="token")


def token_entropy(table: TurnTable, options: AEPOOptions) -> Floats:
    """(N,) entropy of each action token, or its one-sample estimate."""
    if options.entropy == "entropy" or (options.entropy == "auto" and "tokens.entropy" in table):
        return np.asarray(table["tokens.entropy"], np.float64)
    return -np.asarray(table["tokens.logprob"], np.float64)


def entropy_factor(entropy: ArrayLike, mask: ArrayLike, weight: float = 0.2) -> Floats:
    """(N,) 1 + weight * (entropy - mean) / std over the masked tokens (sample std, 1 where it is 0); 1 elsewhere."""
    data, keep = np.asarray(entropy, np.float64), np.asarray(mask, bool)
    chosen = data[keep]
    if chosen.size < 2:
        return np.ones(data.shape)
    spread = float(chosen.std(ddof=1))
    return np.where(keep, 1.0 + weight * (data - chosen.mean()) / (spread if spread > 0 else 1.0), 1.0)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "aepo",
        advantage,
        AEPOOptions,
        summary="z-score of the episode times 1 + weight * standardised token entropy",
        source="arXiv 2510.14545 §4; RUC-NLPIR/ARPO AEPO/verl_aepo_entropy",
        requires=("tokens.turn", "tokens.logprob", *RETURN_COLUMNS),
        granularity="token",
        confidence="A",
    )
