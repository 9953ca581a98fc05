"""IGPO, information gain per turn (arXiv 2510.14967), docs/methods/igpo.md.

The paper, the trainer that was released, and a function that this trainer does not call differ; all three are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Credit,
    Floats,
    Ints,
    chain_links,
    discounted_sum,
    group_advantage,
    group_ids,
    optional,
    rewards_to_go,
    token_chain,
    trained_only,
    unordered,
)
from verl_hier.credit.tokens import row_positions
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class IGPOOptions:
    """The form decides what the other options mean."""

    form: Literal["trainer", "paper", "discounted"] = "trainer"
    """trainer: all rewards from a token to the end of its row, minus the mean of the task's rows at the same position;
    paper: z-score all turn rewards of the task jointly, then discount from turn to turn; discounted: discount tokens
    inside a turn, then normalise by the first-token returns of the task's episodes, as the released function of this
    name that nothing calls."""
    gamma: ZeroToOne = 1.0
    """Discount, from turn to turn (paper) or from token to token (discounted); the trainer has none."""
    scale: bool = True
    """Whether the form `discounted` divides by the standard deviation."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: IGPOOptions) -> Credit:
    """Credit per token from the information gain of the turns and the final reward; equal inside a turn in the paper's
    form."""
    turn = np.asarray(table["tokens.turn"])
    trained = np.asarray(table["trained"], bool)
    if options.form == "paper":
        keys = group_ids(table["group"])
        pooled = group_advantage(turn_rewards(table), keys, where=trained, eps=options.eps, singleton="zero")
        return Credit(trained_only(table, rewards_to_go(table, options.gamma, pooled))[turn], per="token")
    reward = token_rewards(table)
    if options.form == "trainer":
        returns = row_returns(table, reward)
        values = by_position(table, returns, reward)
    else:
        returns = discounted_sum(reward, chain_links(turn), options.gamma)
        values = by_first_token(table, returns, options)
    return Credit(np.where(trained[turn], values, 0.0), per="token", returns=returns)


def turn_rewards(table: TurnTable) -> Floats:
    """(T,) information gain of a turn, on last turns the return of the episode."""
    reward = np.array(table["info_gain"], np.float64)
    leaf = np.asarray(table["episodes.leaf"])
    reward[leaf] = np.asarray(table["episodes.return"], np.float64)
    return reward


def token_rewards(table: TurnTable) -> Floats:
    """(N,) rewards on the last tokens of the turns; the column `tokens.reward` overrides them."""
    turn = np.asarray(table["tokens.turn"])
    reward = optional(table, "tokens.reward")
    return np.where(chain_links(turn), 0.0, turn_rewards(table)[turn]) if reward is None else np.asarray(reward)


def row_returns(table: TurnTable, reward: Floats) -> Floats:
    """(N,) rewards from each token to the end of its row, those of later turns included."""
    row = np.asarray(table["row"])[np.asarray(table["tokens.turn"])]
    order = np.lexsort((row_positions(table), row))
    return unordered(discounted_sum(reward[order], chain_links(row[order]), 1.0), order)


def by_position(table: TurnTable, returns: Floats, reward: Floats) -> Floats:
    """(N,) returns minus the mean over the rows of the task of what follows at the same position of their responses.

    Every row of the task with a trained turn counts at every position: what it earns from there on, also where it
    reads an observation, and 0 behind its end.
    """
    turn, row = np.asarray(table["tokens.turn"]), np.asarray(table["row"])
    trained, group = np.asarray(table["trained"], bool), np.asarray(table["group"])
    counts = np.bincount(row[trained], minlength=int(row.max(initial=-1)) + 1) > 0
    place = np.stack([group[turn], row_positions(table)])
    places, keys = np.unique(place, axis=1, return_inverse=True)
    keys = keys.ravel()
    earned = np.bincount(keys, reward * counts[row[turn]], places.shape[1])
    following = discounted_sum(earned, chain_links(places[0]), 1.0)
    rows = np.unique(np.stack([group, row])[:, trained], axis=1)[0]
    size = np.maximum(np.bincount(rows, minlength=int(group.max(initial=0)) + 1), 1)
    return returns - following[keys] / size[group[turn]]


def by_first_token(table: TurnTable, returns: Floats, options: IGPOOptions) -> Floats:
    """(N,) returns, standardised by the first tokens of the task's episodes; one episode has deviation 1."""
    turn = np.asarray(table["tokens.turn"])
    episode = np.asarray(table["episode"])[turn]
    order = token_chain(table)[0]
    votes = np.zeros(turn.size)
    votes[order[np.unique(episode[order], return_index=True)[1]]] = 1.0
    votes *= np.asarray(table["trained"], bool)[turn]
    keys: Ints = group_ids(np.asarray(table["group"])[turn])
    size = np.maximum(np.bincount(keys, votes), 1.0)
    mean = np.bincount(keys, votes * returns) / size
    if not options.scale:
        return returns - mean[keys]
    square = np.bincount(keys, votes * (returns - mean[keys]) ** 2)
    spread = np.where(size > 1, np.sqrt(square / np.maximum(size - 1, 1)), 1.0)
    return (returns - mean[keys]) / (spread[keys] + options.eps)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "igpo",
        advantage,
        IGPOOptions,
        summary="information gain from here to the end of the row, minus the mean of the task's rows at that position",
        source="arXiv 2510.14967 §3; GuoqingWang1/IGPO core_algos.py::compute_grpo_outcome_advantage",
        requires=(
            "group",
            "row",
            "depth",
            "n_prompt",
            "n_tokens",
            "info_gain",
            "trained",
            "episodes.return",
            "episodes.leaf",
            "tokens.turn",
        ),
        granularity="token",
        confidence="A",
    )
