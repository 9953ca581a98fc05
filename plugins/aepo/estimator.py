"""AEPO, entropy-aware advantage (arXiv 2510.14545), docs/estimators/aepo.md.

Paper §4; released form: ARPO repository, `AEPO/`. Confidence A; the policy loss is in `losses.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit import Credit, episode_advantage, episodes_to_turns
from verl_hier.trajectory.table import TurnTable


@dataclass(frozen=True)
class AEPOOptions:
    """Defaults are the released code's."""

    entropy_weight: float = 0.2
    """Weight of the standardised token entropy in the factor of the advantage; 0 is GRPO."""
    eps: float = 1e-6
    """Added to the standard deviation of the returns."""


def advantage(table: TurnTable, options: AEPOOptions) -> Credit:
    """Credit per token: the episode's z-score times 1 + weight * standardised entropy of the token."""
    episode = episode_advantage(table, eps=options.eps)
    turns = episodes_to_turns(table, episode)
    turn = np.asarray(table["tokens.turn"])
    mask = np.asarray(table["trained"], bool)[turn]
    return Credit(turns[turn] * entropy_factor(table["tokens.entropy"], mask, options.entropy_weight), per="token")


def entropy_factor(entropy: ArrayLike, mask: ArrayLike, weight: float = 0.2) -> NDArray[np.float64]:
    """(N,) 1 + weight * (entropy - mean) / std over the masked tokens (sample std, 1 where it is 0); 1 elsewhere."""
    data, keep = np.asarray(entropy, np.float64), np.asarray(mask, bool)
    chosen = data[keep]
    if chosen.size < 2:
        return np.ones(data.shape)
    spread = float(chosen.std(ddof=1))
    return np.where(keep, 1.0 + weight * (data - chosen.mean()) / (spread if spread > 0 else 1.0), 1.0)
