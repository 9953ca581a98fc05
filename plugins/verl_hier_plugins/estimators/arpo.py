"""ARPO, advantage attribution over branched rollouts (arXiv 2507.19849), docs/methods/arpo.md.

The released trainer runs the soft form (confidence A); the hard form is described in the paper alone (confidence B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.credit import RETURN_COLUMNS, Credit, WeightBy, episode_advantage, share, term
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class ARPOOptions:
    """Defaults are the released trainer's."""

    attribution: Literal["soft", "hard"] = "soft"
    """soft: every chain keeps its own advantage on shared turns; hard: a shared turn gets the mean of its chains."""
    weight_by: WeightBy = "episode"
    """Votes in the statistics of the task."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: ARPOOptions) -> Credit:
    """Credit per step (soft) or per turn (hard): the z-score of each chain over all chains of the task."""
    values = episode_advantage(table, weight_by=options.weight_by, eps=options.eps)
    term("chain among the chains of the task", values, "episode")
    return share(table, values[table.step_episode], "repeat" if options.attribution == "soft" else "average")


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "arpo",
        advantage,
        ARPOOptions,
        summary="z-score of each chain over the task, soft or hard on shared turns",
        source="arXiv 2507.19849 §3.2; RUC-NLPIR/ARPO (soft)",
        requires=RETURN_COLUMNS,
        granularity="step",
        confidence="A",
    )
