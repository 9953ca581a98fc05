"""MARFT, GAE along the chain of agents (arXiv 2504.16129), docs/methods/marft.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import (
    Bools,
    Credit,
    Floats,
    gae,
    optional,
    shift_back,
    token_chain,
    trained_only,
    turn_gae,
    unordered,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class MARFTOptions:
    """One reward and one value an agent turn; the turns of a step follow one another on the path."""

    gamma: ZeroToOne = 0.99
    """Discount from one agent's action to the next."""
    lam: ZeroToOne = 0.95
    """GAE decay from one agent's action to the next."""
    normalise: bool = True
    """Whether advantages are standardised over the batch, by the statistics of those that are not exactly 0."""


def advantage(table: TurnTable, options: MARFTOptions) -> Credit:
    """Credit per turn: GAE over the agents' actions, the last agent of a step followed by the first of the next."""
    values, targets = turn_gae(table, table["value"], options.gamma, options.lam)
    values = trained_only(table, values)
    return Credit(
        standardised(values, np.asarray(table["trained"], bool)) if options.normalise else values, returns=targets
    )


def token_advantage(table: TurnTable, options: MARFTOptions) -> Credit:
    """Credit per token: the same chain over tokens, the reward of a turn on its last one."""
    turn, order, links, last = np.asarray(table["tokens.turn"]), *token_chain(table)
    at = turn[order]
    value = np.asarray(table["tokens.value"], np.float64)[order]
    alive = ~(np.asarray(table["done"], bool)[at] & last)
    after = np.asarray(optional(table, "bootstrap", np.zeros(len(table))), np.float64)[at]
    following = shift_back(value, links, np.where(last, after, 0.0)) * alive
    reward = np.where(last, np.asarray(table["reward"], np.float64)[at], 0.0)
    found = gae(reward, value, following, links & alive, options.gamma, options.lam)
    trained = np.asarray(table["trained"], bool)[turn]
    values = np.where(trained, unordered(found, order), 0.0)
    credit = Credit(standardised(values, trained) if options.normalise else values, per="token")
    credit.returns = unordered(found + value, order)
    return credit


def standardised(values: ArrayLike, trained: Bools) -> Floats:
    """Trained entries, standardised by the mean and population deviation (eps 1e-8) of those that are not exactly 0.

    The released code leaves zeros out of the statistics and shifts them all the same. With fewer than two entries to
    compare nothing changes, where the released code divides by its eps.
    """
    data = np.asarray(values, np.float64)
    chosen = data[(data != 0) & trained]
    if chosen.size < 2:
        return data
    return np.where(trained, (data - chosen.mean()) / (chosen.std() + 1e-8), 0.0)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
            "marft",
            advantage,
            MARFTOptions,
            summary="GAE along the chain of the agents' actions",
            source="arXiv 2504.16129; jwliao-ai/MARFT action_level_buffer.py",
            requires=("reward", "done", "trained", "value"),
            needs_groups=False,
            needs_critic=True,
            confidence="A",
        ),
        EstimatorSpec(
            "marft_token",
            token_advantage,
            MARFTOptions,
            summary="GAE along the tokens of all agents, chained from one agent to the next",
            source="arXiv 2504.16129; jwliao-ai/MARFT (token level)",
            requires=("turn", "episode", "reward", "done", "trained", "tokens.turn", "tokens.value"),
            granularity="token",
            needs_groups=False,
            needs_critic=True,
            confidence="A",
        ),
    ]
