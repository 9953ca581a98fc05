"""ArCHer, utterance-level actor-critic (arXiv 2402.19446), docs/methods/archer.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit import Credit, Floats, optional, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class ArCHerOptions:
    """Two Q and two V heads are turn columns."""

    token_baseline: bool = False
    """Whether the token column `baseline`, fitted to the advantage, is subtracted; credit is then per token."""


def advantage(table: TurnTable, options: ArCHerOptions) -> Credit:
    """Credit per turn: the smaller Q minus the smaller V of the utterance."""
    smaller_q = np.minimum(np.asarray(table["q1"], np.float64), table["q2"])
    smaller_v = np.minimum(np.asarray(table["v1"], np.float64), table["v2"])
    values = trained_only(table, smaller_q - smaller_v)
    if not options.token_baseline:
        return Credit(values)
    turn = np.asarray(table["tokens.turn"])
    baseline = np.asarray(optional(table, "tokens.baseline", np.zeros(turn.size)), np.float64)
    trained = np.asarray(table["trained"], bool)[turn]
    return Credit(np.where(trained, values[turn] - baseline, 0.0), per="token", returns=values[turn])


def q_targets(reward: ArrayLike, done: ArrayLike, next_values: ArrayLike, gamma: float = 0.95) -> Floats:
    """(..., T) regression targets of the Q heads: r + gamma (1 - done) V of the target copy at the next state."""
    alive = 1.0 - np.asarray(done, np.float64)
    return np.asarray(reward, np.float64) + gamma * alive * np.asarray(next_values, np.float64)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "archer",
        advantage,
        ArCHerOptions,
        summary="smaller Q minus smaller V of the utterance",
        source="arXiv 2402.19446 §3; YifeiZhou02/ArCHer trainer.py",
        requires=("q1", "q2", "v1", "v2", "trained"),
        needs_groups=False,
        needs_critic=True,
        confidence="A",
    )
