"""RAGEN's bi-level GAE (mll-lab-nu/RAGEN), docs/methods/ragen_bilevel.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, chain_links, gae, shift_back, step_links, step_mean, whiten
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class BilevelOptions:
    """Turn ends are explicit here, so that a turn whose reward is 0 counts (the released code overlooks it)."""

    gamma: ZeroToOne = 1.0
    """Discount from token to token inside a turn."""
    lam: ZeroToOne = 1.0
    """GAE decay of both levels."""
    high_gamma: ZeroToOne = 0.95
    """Discount from turn to turn."""
    whiten: bool = True
    """Whether advantages are whitened over the batch's tokens."""


def advantage(table: TurnTable, options: BilevelOptions) -> Credit:
    """Credit per token: GAE over turn ends gives each turn its return, GAE over its tokens spreads that return."""
    turn = np.asarray(table["tokens.turn"])
    value = np.asarray(table["tokens.value"], np.float64)
    inside = chain_links(turn)
    at_end = np.zeros(len(table))
    at_end[turn[~inside]] = value[~inside]
    steps, links = at_end[table.step_turn], step_links(table)
    reward = np.asarray(table["reward"], np.float64)[table.step_turn]
    high = gae(reward, steps, shift_back(steps, links), links, options.high_gamma, options.lam)
    target = step_mean(table, high) + at_end
    found = gae(
        np.where(inside, 0.0, target[turn]), value, shift_back(value, inside), inside, options.gamma, options.lam
    )
    trained = np.asarray(table["trained"], bool)[turn]
    values = whiten(found, trained) if options.whiten else np.where(trained, found, 0.0)
    return Credit(values, per="token", returns=found + value)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "ragen_bilevel",
        advantage,
        BilevelOptions,
        summary="GAE over turn ends, its return spread by GAE inside the turn",
        source="mll-lab-nu/RAGEN compute_bi_level_gae_advantage_return",
        requires=("reward", "trained", "tokens.turn", "tokens.value"),
        granularity="token",
        needs_groups=False,
        needs_critic=True,
        confidence="A",
    )
