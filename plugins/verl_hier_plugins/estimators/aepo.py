"""AEPO, entropy-aware advantage (arXiv 2510.14545), docs/methods/aepo.md.

The clipping that belongs to it is the policy loss `losses/aepo.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import RETURN_COLUMNS, Credit, Floats, Shared, episode_advantage, owner_weighs, share, step_sum
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
    shared: Shared = "repeat"
    """What a turn gets that several chains share."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation of the returns."""


def advantage(table: TurnTable, options: AEPOOptions) -> Credit:
    """Credit per step: the episode's z-score, times 1 + weight * standardised entropy on each of its tokens."""
    values = episode_advantage(table, eps=options.eps)
    credit = share(table, values[table.step_episode], options.shared)
    rows = np.asarray(table["trained"], np.float64)
    if options.shared == "repeat":  # a shared turn is trained in the row of each chain
        rows = rows * step_sum(table, np.asarray(table["episodes.trained"], bool)[table.step_episode])
    votes = rows[np.asarray(table["tokens.turn"])]
    credit.factor = entropy_factor(token_entropy(table, options), votes, options.entropy_weight)
    return credit


def token_entropy(table: TurnTable, options: AEPOOptions) -> Floats:
    """(N,) entropy of each action token, or its one-sample estimate."""
    if options.entropy == "entropy" or (options.entropy == "auto" and "tokens.entropy" in table):
        return np.asarray(table["tokens.entropy"], np.float64)
    return -np.asarray(table["tokens.logprob"], np.float64)


def entropy_factor(entropy: ArrayLike, votes: ArrayLike, weight: float = 0.2) -> Floats:
    """Factor of the advantage on each token: 1 + weight * (entropy - mean) / std.

    Args:
        entropy: array of any shape, in nats.
        votes: of the same shape: how often each token counts in mean and standard deviation (ddof 1; 1 where it is 0).
        weight: see `AEPOOptions.entropy_weight`.

    Returns:
        An array of that shape; 1 where a token does not count, and everywhere when fewer than two do.
    """
    data, count = np.asarray(entropy, np.float64), np.asarray(votes, np.float64)
    total = count.sum()
    if total < 2:
        return np.ones(data.shape)
    known = np.where(count > 0, data, 0.0)
    mean = (known * count).sum() / total
    spread = float(np.sqrt(((known - mean) ** 2 * count).sum() / (total - 1)))
    return np.where(count > 0, 1.0 + weight * (known - mean) / (spread if spread > 0 else 1.0), 1.0)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "aepo",
        advantage,
        AEPOOptions,
        summary="z-score of the episode times 1 + weight * standardised token entropy",
        source="arXiv 2510.14545 §4; RUC-NLPIR/ARPO AEPO/verl_aepo_entropy",
        requires=("tokens.turn", "tokens.logprob", *RETURN_COLUMNS),
        reads=("tokens.entropy",),
        granularity="step",
        weighs=lambda options: owner_weighs(options.shared),
        confidence="A",
    )
