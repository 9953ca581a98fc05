"""IPA, discounted outcomes on chunks of interaction (ROME, arXiv 2512.24873), docs/methods/ipa.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, Floats, share
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import AboveZeroToOne, Positive
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class IPAOptions:
    """A chunk is what the agent generates between two answers of the environment: a turn."""

    gamma: AboveZeroToOne = 0.95
    """Discount for each turn between a turn and the end of its episode."""
    offset: float = 0.0
    """Subtracted from the return; where failures have the return 0, half of a success makes them negative."""
    most_mismatch: Positive | None = 5.0
    """A turn leaves the loss when the geometric mean of p(training) / p(rollout) over its tokens exceeds this (H);
    null keeps all."""


def advantage(table: TurnTable, options: IPAOptions) -> Credit:
    """Credit per turn: gamma to the power of the turns that follow, times the return; no baseline.

    The policy loss `ipa` treats positive and negative credit differently.
    """
    returns = np.asarray(table["episodes.return"], np.float64) - options.offset
    length = np.bincount(table.step_episode, minlength=len(returns))
    first = np.cumsum(length) - length
    left = (first + length - 1)[table.step_episode] - np.arange(len(table.step_turn))
    credit = share(table, options.gamma**left * returns[table.step_episode], "average")
    if options.most_mismatch is not None and "tokens.old_logprob" in table:
        credit.weight = (mismatch(table) <= options.most_mismatch).astype(np.float64)
    return credit


def mismatch(table: TurnTable) -> Floats:
    """(T,) geometric mean of p(training) / p(rollout) over the tokens of each turn; 1 where the server gave none, and
    nan, which is above every limit, where training gave no number."""
    turn, rollout = np.asarray(table["tokens.turn"]), np.asarray(table["tokens.logprob"], np.float64)
    difference = np.asarray(table["tokens.old_logprob"], np.float64) - rollout
    count = np.maximum(np.bincount(turn, minlength=len(table)), 1)
    known = np.where(np.isnan(rollout), 0.0, difference)
    return np.exp(np.bincount(turn, known, len(table)) / count)


def weighs(options: IPAOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    return "" if options.most_mismatch is None else f"most_mismatch: {options.most_mismatch:g}"


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "ipa",
        advantage,
        IPAOptions,
        summary="the return, discounted by the turns that follow; turns far off the rollout policy leave the loss",
        source="arXiv 2512.24873 (notes on the report); segment ratio: alibaba/ROLL agentic_actor_pg_worker.py",
        requires=("trained", "episodes.return", "episodes.trained"),
        reads=("tokens.logprob",),
        needs_groups=False,
        weighs=weighs,
        confidence="B",
    )
