"""SPA-RL, stepwise attribution of progress (arXiv 2505.20732), docs/methods/spa_rl.md.

The factor K - 1 - idx of the repository's trainer is not in the paper and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import Credit, Floats, episode_sum, gae, shift_back, token_chain, unordered, whiten
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class SPAOptions:
    """The progress head itself is a column; `progress_loss` is what it is fitted by."""

    grounded_weight: NonNegative = 0.5
    """Reward of a turn whose action was understood."""
    gamma: ZeroToOne = 1.0
    """Discount a token."""
    lam: ZeroToOne = 1.0
    """GAE decay a token."""
    whiten: bool = True
    """Whether advantages are whitened over the batch's tokens, as verl's PPO does."""


def advantage(table: TurnTable, options: SPAOptions) -> Credit:
    """Credit per token: GAE over tokens with the step rewards on the last token of each turn."""
    turn, order, links, last = np.asarray(table["tokens.turn"]), *token_chain(table)
    value = np.asarray(table["tokens.value"], np.float64)[order]
    reward = np.where(last, step_rewards(table, options)[turn[order]], 0.0)
    found = gae(reward, value, shift_back(value, links), links, options.gamma, options.lam)
    trained = np.asarray(table["trained"], bool)[turn[order]]
    values = whiten(found, trained) if options.whiten else np.where(trained, found, 0.0)
    return Credit(unordered(values, order), per="token", returns=unordered(found + value, order))


def step_rewards(table: TurnTable, options: SPAOptions) -> Floats:
    """(T,) predicted progress of each turn, plus the share for an action that was understood."""
    valid = np.asarray(table["valid"], bool)
    return np.asarray(table["progress"], np.float64) + options.grounded_weight * valid


def progress_loss(table: TurnTable, progress: ArrayLike) -> float:
    """Mean squared difference between the summed progress (T,) of each episode and its return."""
    total = episode_sum(table, progress)
    return float(np.mean((total - np.asarray(table["episodes.return"], np.float64)) ** 2))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "spa_rl",
        advantage,
        SPAOptions,
        summary="token GAE with predicted progress as step rewards",
        source="arXiv 2505.20732 §3",
        requires=("turn", "episode", "progress", "valid", "trained", "tokens.turn", "tokens.value"),
        granularity="token",
        needs_groups=False,
        needs_critic=True,
        confidence="A",
    )
