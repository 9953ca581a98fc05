"""BranPO, preferences between the endings of an episode (arXiv 2602.03719), docs/methods/branpo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, Normalisation, Scale, group_ids, turn_advantage
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class BranPOOptions:
    """Defaults are the released code's."""

    scale: Scale = "sample"
    """What both levels divide by; `none` only centres."""
    drop_uniform: bool = False
    """Leave tasks out of the loss whose returns are all at least 1 or all at most 0."""
    eps: float = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: BranPOOptions) -> Credit:
    """Credit per turn: bases against bases, endings against endings, and no praise for an ending that lost.

    The return of a base is the mean over its endings. Every base and every ending of a task has one vote.
    """
    returns = np.asarray(table["return"], np.float64)
    ending = np.asarray(table["suffix"], bool)
    kernel: Normalisation = {"scale": options.scale, "eps": options.eps}
    base = turn_advantage(table, returns, ("group",), weight_by="episode", where=~ending, **kernel)
    last = turn_advantage(table, returns, ("group",), weight_by="episode", where=ending, **kernel)
    lost = (np.asarray(table["preference"]) < 0) & (last > 0)
    return Credit(base + np.where(lost, 0.0, last), weight=kept(table) if options.drop_uniform else None)


def kept(table: TurnTable) -> np.ndarray:
    """(T,) 1 for the turns of tasks in which something can still be learned, else 0."""
    returns, keys = np.asarray(table["episodes.return"], np.float64), group_ids(table["episodes.group"])
    best, worst = (np.full(int(keys.max(initial=-1)) + 1, fill) for fill in (-np.inf, np.inf))
    np.maximum.at(best, keys, returns)
    np.minimum.at(worst, keys, returns)
    return ((best > 0) & (worst < 1))[keys][np.asarray(table["episode"])].astype(np.float64)


def weighs(options: BranPOOptions) -> str:
    """The option by which turns get loss weights, empty where none does."""
    return "drop_uniform: true" if options.drop_uniform else ""


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "branpo",
        advantage,
        BranPOOptions,
        summary="bases against bases and endings against endings; an ending that lost is never praised",
        source="arXiv 2602.03719; YubaoZhao/BranPO agent_ppo_branch_trainer.py::compute_advantage",
        requires=("group", "episode", "return", "trained", "suffix", "preference"),
        weighs=weighs,
        confidence="A",
    )
