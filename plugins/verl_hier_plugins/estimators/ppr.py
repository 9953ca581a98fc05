"""PPR, judged steps centred by the outcome, with a critic (arXiv 2509.25598), docs/methods/ppr.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, Floats, trained_only, turn_gae
from verl_hier.credit.trees import is_leaf
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class PPROptions:
    """Defaults are the released script's."""

    renorm: bool = True
    """Whether the outcome, less `beta`, is added to the score of each step (ReNorm)."""
    beta: float = 1.0
    """What is taken from that sum: with 1, steps of right answers earn nothing bad and those of wrong ones nothing
    good."""
    gamma: ZeroToOne = 1.0
    """Discount from one turn to the next."""
    lam: ZeroToOne = 1.0
    """GAE decay from one turn to the next."""


def advantage(table: TurnTable, options: PPROptions) -> Credit:
    """Credit per turn: GAE of the judged steps and the outcome; the critic learns the returns."""
    values, targets = turn_gae(table, table["value"], options.gamma, options.lam, rewards(table, options))
    return Credit(trained_only(table, values), returns=targets)


def rewards(table: TurnTable, options: PPROptions) -> Floats:
    """(T,) reward of each turn: the outcome for the last one of an episode, what the judge says for the others.

    A score that is missing or not within 0 to 1 counts as 0.
    """
    outcome = np.asarray(table["return"], np.float64)
    score = np.asarray(table["judge"], np.float64)
    score = np.where((score >= 0) & (score <= 1), score, 0.0)
    steps = score + outcome - options.beta if options.renorm else score
    return np.where(is_leaf(table["parent"]), outcome, steps)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "ppr",
        advantage,
        PPROptions,
        summary="GAE over steps that a judge has scored, centred by the outcome",
        source="arXiv 2509.25598; Zhuohao-Li/ppr verl/trainer/main_ppo.py",
        requires=("parent", "return", "done", "judge", "value", "trained"),
        needs_groups=False,
        needs_critic=True,
        confidence="A",
    )
