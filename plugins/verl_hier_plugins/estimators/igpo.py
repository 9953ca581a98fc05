"""IGPO, information gain per turn (arXiv 2510.14967), docs/methods/igpo.md.

The paper and the released code differ; both forms are here (the paper is confidence B, the code A).
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
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class IGPOOptions:
    """The paper's form, or the one that the repository runs."""

    form: Literal["paper", "repo"] = "paper"
    """paper: z-score all turn rewards of the task jointly, then discount; repo: discount tokens inside a turn, then
    normalise by the first-token returns of the task's episodes."""
    gamma: ZeroToOne = 1.0
    """Discount, from turn to turn (paper) or from token to token (repo)."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: IGPOOptions) -> Credit:
    """Credit per turn (paper) or per token (repo) from the information gain of the turns and the final reward."""
    if options.form == "repo":
        return repo_form(table, options)
    keys, trained = group_ids(table["group"]), np.asarray(table["trained"], bool)
    pooled = group_advantage(turn_rewards(table), keys, where=trained, eps=options.eps, singleton="zero")
    return Credit(trained_only(table, rewards_to_go(table, options.gamma, pooled)))


def turn_rewards(table: TurnTable) -> Floats:
    """(T,) information gain of a turn, on last turns the return of the episode."""
    reward = np.array(table["info_gain"], np.float64)
    leaf = np.asarray(table["episodes.leaf"])
    reward[leaf] = np.asarray(table["episodes.return"], np.float64)
    return reward


def repo_form(table: TurnTable, options: IGPOOptions) -> Credit:
    """Credit per token of the released function; `tokens.reward` overrides the reward on each turn's last token."""
    turn = np.asarray(table["tokens.turn"])
    links = chain_links(turn)
    reward = optional(table, "tokens.reward")
    if reward is None:
        reward = np.where(links, 0.0, turn_rewards(table)[turn])
    returns = discounted_sum(reward, links, options.gamma)
    episode = np.asarray(table["episode"])[turn]
    order = token_chain(table)[0]
    votes = np.zeros(turn.size)
    votes[order[np.unique(episode[order], return_index=True)[1]]] = 1.0
    votes *= np.asarray(table["trained"], bool)[turn]
    keys = group_ids(np.asarray(table["group"])[turn])
    values = first_token_normalised(returns, keys, votes, options.eps)
    trained = np.asarray(table["trained"], bool)[turn]
    return Credit(np.where(trained, values, 0.0), per="token", returns=returns)


def first_token_normalised(returns: Floats, keys: Ints, votes: Floats, eps: float) -> Floats:
    """(N,) returns, standardised over the tokens of the group that have a vote; one vote alone has deviation 1."""
    size = np.maximum(np.bincount(keys, votes), 1.0)
    mean = np.bincount(keys, votes * returns) / size
    square = np.bincount(keys, votes * (returns - mean[keys]) ** 2)
    spread = np.where(size > 1, np.sqrt(square / np.maximum(size - 1, 1)), 1.0)
    return (returns - mean[keys]) / (spread[keys] + eps)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "igpo",
        advantage,
        IGPOOptions,
        summary="information gain of the turns and the outcome, z-scored jointly, then discounted",
        source="arXiv 2510.14967 §3; GuoqingWang1/IGPO core_algos.py (form repo)",
        requires=("group", "info_gain", "trained", "episodes.return", "episodes.leaf"),
        confidence="B",
    )
