"""MARS, turn-level credit in self-play (arXiv 2510.15414), docs/methods/mars.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Credit,
    Floats,
    Ints,
    chain_links,
    group_ids,
    group_mean,
    linear_scan,
    unordered,
    whiten,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec

_EPS = 1e-6


@dataclass(frozen=True)
class MARSOptions:
    """Defaults are the released configuration's: all five steps on. Players are the agents of the table, games the data
    sources of the tasks."""

    separate_players: bool = True
    """Whether each player has reward statistics of its own."""
    separate_games: bool = True
    """Whether each game has reward statistics of its own."""
    reward_norm: Literal["mean", "mean_std", "asym_clip", "none"] = "mean"
    """What is done to turn rewards first: `mean` subtracts their mean, `mean_std` also divides by their sample
    standard deviation, `asym_clip` then cuts them to [-1, 3]."""
    whiten_rewards: bool = True
    """Whether rewards are then whitened over the tokens of the batch, of which all but the last of a turn have 0."""
    gamma: ZeroToOne = 1.0
    """Discount from one token to the next, those of prompts included."""
    advantage_norm: Literal["mean", "mean_std", "none"] = "mean"
    """Whether the mean (and deviation) of the player's distinct returns is taken out."""
    padding_value: bool = True
    """Whether 0 counts as one of the distinct returns: the released code sees it on padding."""
    whiten_advantages: bool = True
    """Whether advantages are whitened over the batch's tokens at the end."""


def advantage(table: TurnTable, options: MARSOptions) -> Credit:
    """Credit per token: the reward from there to the end of the player's row, without the mean of the player's distinct
    returns."""
    returns = token_returns(table, player_rewards(table, options), options)
    values = distinct_normalised(table, returns, options)
    trained = np.asarray(table["trained"], bool)[np.asarray(table["tokens.turn"])]
    values = whiten(values, trained) if options.whiten_advantages else np.where(trained, values, 0.0)
    return Credit(values, per="token", returns=returns)


def player_rewards(table: TurnTable, options: MARSOptions) -> Floats:
    """(T,) turn rewards, normalised over the turns of the player in the game."""
    reward = np.asarray(table["reward"], np.float64)
    if options.reward_norm == "none":
        return reward
    everyone = np.zeros(len(table), np.int64)
    player = np.asarray(table["agent"]) if options.separate_players else everyone
    source = np.asarray(table["episodes.source"])[np.asarray(table["episode"])]
    keys = group_ids(player, source if options.separate_games else everyone)
    centred = reward - group_mean(reward, keys)[keys]
    if options.reward_norm == "mean":
        return centred
    freedom = np.maximum(np.bincount(keys) - 1, 1)
    spread = np.sqrt(np.bincount(keys, centred**2) / freedom)[keys]
    scaled = np.where(spread > _EPS, centred / (spread + _EPS), 0.0)
    return scaled if options.reward_norm == "mean_std" else np.clip(scaled, -1.0, 3.0)


def token_returns(table: TurnTable, rewards: Floats, options: MARSOptions) -> Floats:
    """(N,) discounted sum of the rewards (T,), which lie on the last token of each turn, to the end of the row."""
    turn = np.asarray(table["tokens.turn"])
    agent, episode = np.asarray(table["agent"])[turn], np.asarray(table["episode"])[turn]
    order = np.lexsort((np.arange(turn.size), np.asarray(table["depth"])[turn], agent, episode))
    ordered = turn[order]
    inside, links = chain_links(ordered), chain_links(episode[order], agent[order])
    reward = np.where(inside, 0.0, rewards[ordered])
    if options.whiten_rewards:
        reward = whiten(reward, np.asarray(table["trained"], bool)[ordered])
    gap = np.zeros(turn.size)
    gap[:-1] = np.where(inside[:-1], 0, np.asarray(table["n_prompt"])[ordered[1:]])
    return unordered(linear_scan(reward, links * options.gamma ** (1.0 + gap)), order)


def distinct_normalised(table: TurnTable, returns: Floats, options: MARSOptions) -> Floats:
    """(N,) returns minus the mean of the player's distinct ones, divided by their deviation with `mean_std`."""
    if options.advantage_norm == "none":
        return returns
    keys = group_ids(np.asarray(table["agent"])[np.asarray(table["tokens.turn"])])
    count = int(keys.max()) + 1 if keys.size else 0
    owner, value = keys, returns
    if options.gamma < 1:
        more = prompt_returns(table, returns, options.gamma)
        owner, value = np.append(owner, keys[more[0]]), np.append(value, more[1])
    if options.padding_value:
        owner, value = np.append(owner, np.arange(count)), np.append(value, np.zeros(count))
    first = np.unique(group_ids(owner, np.round(value, 12)), return_index=True)[1]
    owner, value = owner[first], value[first]
    size = np.bincount(owner, minlength=count)
    mean = group_mean(value, owner)
    centred = np.where(size[keys] == 1, 0.0, returns - mean[keys])
    if options.advantage_norm == "mean":
        return centred
    square = np.bincount(owner, (value - mean[owner]) ** 2, count)
    return centred / (np.sqrt(square / np.maximum(size - 1, 1))[keys] + _EPS)


def prompt_returns(table: TurnTable, returns: Floats, gamma: float) -> tuple[Ints, Floats]:
    """Returns at the positions of prompts: the first token of the turn behind each, and the return (M,) there.

    The very first token of a row predicts nothing and is left out, as in the released code.
    """
    turns, first = np.unique(np.asarray(table["tokens.turn"]), return_index=True)
    size = np.asarray(table["n_prompt"], np.int64)[turns]
    depth, chain = np.asarray(table["depth"])[turns], group_ids(table["agent"], table["episode"])[turns]
    order = np.lexsort((depth, chain))
    begins = order[np.append(True, chain[order][1:] != chain[order][:-1])] if order.size else order
    size[begins] = np.maximum(size[begins] - 1, 0)
    behind = np.repeat(first, size)
    distance = np.arange(behind.size) - np.repeat(np.cumsum(size) - size, size) + 1
    return behind, returns[behind] * gamma**distance


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "mars",
        advantage,
        MARSOptions,
        summary="reward-to-go of each player's turns, normalised per player",
        source="arXiv 2510.15414; thu-nics/MARS roll/utils/functionals.py",
        requires=(
            "agent",
            "episode",
            "depth",
            "reward",
            "n_prompt",
            "trained",
            "episodes.source",
            "tokens.turn",
        ),
        granularity="token",
        needs_groups=False,
        own_rewards=True,
        confidence="A",
    )
