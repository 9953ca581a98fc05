"""SPA-RL, stepwise attribution of progress (arXiv 2505.20732), docs/methods/spa_rl.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import (
    RETURN_COLUMNS,
    Credit,
    Floats,
    episode_advantage,
    episode_sum,
    episodes_to_turns,
    gae,
    shift_back,
    token_chain,
    unordered,
    whiten,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class SPAOptions:
    """The progress head itself is a column; `progress_loss` is what it is fitted by."""

    grounded_weight: NonNegative = 0.5
    """Reward of a turn whose action was understood."""
    remaining: bool = False
    """Whether the reward of a turn is multiplied by the number of turns that follow it, as the released trainer does;
    the last turn then has none."""
    gamma: ZeroToOne = 1.0
    """Discount a token."""
    lam: ZeroToOne = 1.0
    """GAE decay a token."""
    whiten: bool = True
    """Whether advantages are whitened over the batch's tokens, as verl's PPO does."""


def advantage(table: TurnTable, options: SPAOptions) -> Credit:
    """Credit per token: GAE over tokens with the predicted progress on the last token of each turn."""
    return token_credit(table, step_rewards(table, table["progress"], options), options)


def outcome_advantage(table: TurnTable, options: SPAOptions) -> Credit:
    """The same with the outcome of the episode on every turn, less the mean of the task's other episodes."""
    outcome = episode_advantage(table, centre="leave_one_out", scale="none", singleton="raw")
    return token_credit(table, step_rewards(table, episodes_to_turns(table, outcome), options), options)


def step_rewards(table: TurnTable, progress: ArrayLike, options: SPAOptions) -> Floats:
    """(T,) progress (T,) of each turn plus the share for an action that was understood, times the turns that follow
    where asked for."""
    reward = np.asarray(progress, np.float64) + options.grounded_weight * np.asarray(table["valid"], bool)
    if not options.remaining:
        return reward
    length = np.asarray(table["episodes.turns"], np.int64)[np.asarray(table["episode"])]
    return reward * (length - 1 - np.asarray(table["depth"], np.int64))


def token_credit(table: TurnTable, rewards: Floats, options: SPAOptions) -> Credit:
    """GAE over the tokens of each episode, with the rewards (T,) on the last token of each turn."""
    turn, order, links, last = np.asarray(table["tokens.turn"]), *token_chain(table)
    value = np.asarray(table["tokens.value"], np.float64)[order]
    reward = np.where(last, rewards[turn[order]], 0.0)
    found = gae(reward, value, shift_back(value, links), links, options.gamma, options.lam)
    trained = np.asarray(table["trained"], bool)[turn[order]]
    values = whiten(found, trained) if options.whiten else np.where(trained, found, 0.0)
    return Credit(unordered(values, order), per="token", returns=unordered(found + value, order))


def progress_loss(table: TurnTable, progress: ArrayLike) -> float:
    """Mean squared difference between the summed progress (T,) of each episode and its return."""
    total = episode_sum(table, progress)
    return float(np.mean((total - np.asarray(table["episodes.return"], np.float64)) ** 2))


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
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
        ),
        EstimatorSpec(
            "spa_rl_outcome",
            outcome_advantage,
            SPAOptions,
            summary="token GAE with the outcome against the task's other episodes as the reward of every turn",
            source="WangHanLinHenry/SPA-RL-Agent prm/rl_data_org.py",
            requires=("turn", "episode", "valid", "tokens.turn", "tokens.value", *RETURN_COLUMNS),
            granularity="token",
            needs_critic=True,
            confidence="A",
        ),
    ]
