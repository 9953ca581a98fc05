"""BranchGRPO, normalisation by depth (abstract), docs/methods/branchgrpo.md.

Leaf returns are averaged towards the root and z-scored among the turns of equal depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, Normalisation, Scale, Singleton, step_mean, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class BranchGRPOOptions:
    """Pruning leaves turns out of the gradient, never out of the statistics."""

    scale: Scale = "sample"
    """Scale of the turns of one depth."""
    singleton: Singleton = "zero"
    """A depth that one turn of the task reaches."""
    prune: ZeroToOne = 0.0
    """Turns whose value lies in this lowest share of the values of their batch are left out of the loss."""
    eps: NonNegative = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: BranchGRPOOptions) -> Credit:
    """Credit per turn: mean return of the leaves below, z-scored among the turns of the task at equal depth."""
    value = step_mean(table, np.asarray(table["episodes.return"], np.float64)[table.step_episode])
    columns = ("group", "depth")
    kernel: Normalisation = {"scale": options.scale, "singleton": options.singleton, "eps": options.eps}
    credit = Credit(turn_advantage(table, value, columns, **kernel))
    if options.prune > 0 and len(value):
        credit.weight = (value >= np.quantile(value, options.prune)).astype(np.float64)
    return credit


def weighs(options: BranchGRPOOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    return f"prune: {options.prune:g}" if options.prune > 0 else ""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "branchgrpo",
        advantage,
        BranchGRPOOptions,
        summary="leaf returns averaged up, z-scored among turns of equal depth",
        source="BranchGRPO (abstract)",
        requires=("group", "depth", "trained", "episodes.return"),
        needs_tree=True,
        weighs=weighs,
        confidence="C",
    )
