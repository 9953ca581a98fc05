"""SPA-RL, stepwise attribution of progress (arXiv 2505.20732), docs/methods/spa_rl.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import (
    RETURN_COLUMNS,
    Credit,
    Floats,
    Ints,
    episode_advantage,
    episode_sum,
    episodes_to_turns,
    gae,
    shift_back,
    step_mean,
    token_chain,
    unordered,
    whiten,
)
from verl_hier.credit.tokens import token_bounds
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec, ValueHeadSpec


@dataclass(frozen=True)
class SPAOptions:
    """The progress estimator is a head of the critic; `progress_targets` is what it learns."""

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
    progress, value = (np.asarray(table[name], np.float64) for name in ("value_progress", "tokens.value_token"))
    credit = token_credit(table, step_rewards(table, progress, options), value, options)
    trained = np.asarray(table["trained"], bool)
    own = np.where(trained[np.asarray(table["tokens.turn"])], np.asarray(credit.returns, np.float64), np.nan)
    credit.targets = {"progress": progress_targets(table, progress), "token": own}
    return credit


def outcome_advantage(table: TurnTable, options: SPAOptions) -> Credit:
    """The same with the outcome of the episode on every turn, less the mean of the task's other episodes."""
    outcome = episode_advantage(table, centre="leave_one_out", scale="none", singleton="raw")
    value = np.asarray(table["tokens.value"], np.float64)
    return token_credit(table, step_rewards(table, episodes_to_turns(table, outcome), options), value, options)


def step_rewards(table: TurnTable, progress: ArrayLike, options: SPAOptions) -> Floats:
    """(T,) progress (T,) of each turn plus the share for an action that was understood, times the turns that follow
    where asked for."""
    reward = np.asarray(progress, np.float64) + options.grounded_weight * np.asarray(table["valid"], bool)
    if not options.remaining:
        return reward
    length = np.asarray(table["episodes.turns"], np.int64)[np.asarray(table["episode"])]
    return reward * (length - 1 - np.asarray(table["depth"], np.int64))


def token_credit(table: TurnTable, rewards: Floats, values: Floats, options: SPAOptions) -> Credit:
    """GAE over the tokens of each episode, with the rewards (T,) on the last token of each turn and values (N,)."""
    turn, order, links, last = np.asarray(table["tokens.turn"]), *token_chain(table)
    value = values[order]
    reward = np.where(last, rewards[turn[order]], 0.0)
    found = gae(reward, value, shift_back(value, links), links, options.gamma, options.lam)
    trained = np.asarray(table["trained"], bool)[turn[order]]
    values = whiten(found, trained) if options.whiten else np.where(trained, found, 0.0)
    return Credit(unordered(values, order), per="token", returns=unordered(found + value, order))


def progress_loss(table: TurnTable, progress: ArrayLike) -> float:
    """Mean squared difference between the summed progress (T,) of each episode and its return."""
    total = episode_sum(table, progress)
    return float(np.mean((total - np.asarray(table["episodes.return"], np.float64)) ** 2))


def progress_targets(table: TurnTable, progress: ArrayLike) -> Floats:
    """(T,) what each prediction (T,) learns: itself, plus what the sum over its episode is short of the return.

    The squared difference to these targets has the gradient of the squared difference between sum and return, the
    paper's loss, which no target that is fixed beforehand has. A turn of several episodes learns the mean; one that is
    not trained has none.
    """
    said = np.asarray(progress, np.float64)
    trained = np.asarray(table["trained"], bool)
    short = np.asarray(table["episodes.return"], np.float64) - episode_sum(table, said)
    return np.where(trained, said + step_mean(table, short[table.step_episode]), np.nan)


def turn_ends(table: TurnTable) -> Ints:
    """(T,) the last action token of each turn, -1 without one."""
    start, stop = token_bounds(np.asarray(table["tokens.turn"]), len(table))
    return np.where(start < stop, stop - 1, -1)


@hookimpl
def hier_value_heads() -> ValueHeadSpec:
    source = "arXiv 2505.20732 §3"
    return ValueHeadSpec("progress", turn_ends, "what a turn adds to the return, read at its end", source)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
            "spa_rl",
            advantage,
            SPAOptions,
            summary="token GAE with predicted progress as step rewards",
            source="arXiv 2505.20732 §3",
            requires=(
                *("turn", "episode", "value_progress", "valid", "trained", "episodes.return"),
                *("tokens.turn", "tokens.value_token"),
            ),
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
