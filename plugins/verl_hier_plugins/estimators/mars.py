"""MARS, turn-level credit in self-play (arXiv 2510.15414), docs/methods/mars.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Floats, Ints, chain_links, discounted_sum, group_ids, group_mean, trained_only, whiten
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MARSOptions:
    """Defaults are the released configuration's: all five steps on. Players are the agents of the table."""

    separate_players: bool = True
    """Whether each player has its own statistics."""
    reward_norm: Literal["mean", "none"] = "mean"
    """Whether the mean turn reward of the player is subtracted."""
    whiten_rewards: bool = True
    """Whether turn rewards are whitened over the batch."""
    gamma: ZeroToOne = 1.0
    """Discount from one turn of a player to its next."""
    advantage_norm: Literal["mean", "mean_std", "none"] = "mean"
    """Whether the mean (and deviation) of the player's distinct returns is taken out."""
    padding_value: bool = True
    """Whether 0 counts as one of the distinct returns: the released code sees it on padding."""
    whiten_advantages: bool = True
    """Whether advantages are whitened over the batch's tokens at the end."""


def advantage(table: TurnTable, options: MARSOptions) -> Floats:
    """(T,) reward-to-go of the player's own turns, without the mean of the player's distinct returns."""
    values = distinct_normalised(table, player_returns(table, player_rewards(table, options), options), options)
    if options.whiten_advantages:
        values = whiten(values, np.asarray(table["trained"], bool), weights=table["n_tokens"])
    return trained_only(table, values)


def players(table: TurnTable, options: MARSOptions) -> Ints:
    """(T,) statistics group of each turn."""
    return group_ids(table["agent"] if options.separate_players else np.zeros(len(table), np.int64))


def player_rewards(table: TurnTable, options: MARSOptions) -> Floats:
    """(T,) turn rewards without the player's mean, whitened if asked for."""
    reward = np.asarray(table["reward"], np.float64)
    if options.reward_norm == "mean":
        keys = players(table, options)
        reward = reward - group_mean(reward, keys)[keys]
    return whiten(reward) if options.whiten_rewards else reward


def player_returns(table: TurnTable, rewards: Floats, options: MARSOptions) -> Floats:
    """(T,) reward-to-go over the turns of one player in one episode."""
    agent, episode = np.asarray(table["agent"]), np.asarray(table["episode"])
    order = np.lexsort((np.asarray(table["turn"]), agent, episode))
    links = chain_links(episode[order], agent[order])
    result = np.empty(len(order))
    result[order] = discounted_sum(rewards[order], links, options.gamma)
    return result


def distinct_normalised(table: TurnTable, returns: Floats, options: MARSOptions) -> Floats:
    """(T,) returns minus the mean of the player's distinct ones, divided by their deviation with `mean_std`."""
    if options.advantage_norm == "none":
        return returns
    keys = players(table, options)
    count = int(keys.max()) + 1 if keys.size else 0
    owner, value = keys, np.round(returns, 12)
    if options.padding_value:
        owner, value = np.append(keys, np.arange(count)), np.append(value, np.zeros(count))
    first = np.unique(group_ids(owner, value), return_index=True)[1]
    owner, value = owner[first], value[first]
    size = np.bincount(owner, minlength=count)
    mean = group_mean(value, owner)
    alone = size[keys] == 1
    centred = np.where(alone, 0.0, returns - mean[keys])
    if options.advantage_norm == "mean":
        return centred
    square = np.bincount(owner, (value - mean[owner]) ** 2, count)
    spread = np.sqrt(square / np.maximum(size - 1, 1))
    return centred / (spread[keys] + 1e-6)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "mars",
        advantage,
        MARSOptions,
        summary="reward-to-go of each player's turns, normalised per player",
        source="arXiv 2510.15414; thu-nics/MARS roll/utils/functionals.py",
        requires=("agent", "episode", "turn", "reward", "n_tokens", "trained"),
        needs_groups=False,
        confidence="A",
    )
