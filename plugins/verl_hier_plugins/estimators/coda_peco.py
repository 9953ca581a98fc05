"""CoDA with PECO, groups with the highest level that learns as baseline (arXiv 2512.12716), docs/methods/coda.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Floats, Normalisation, Singleton, group_advantage, group_ids, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class CoDAOptions:
    """Planners are the turns of level 0; where they do not learn, the highest level that does takes their place."""

    singleton: Singleton = "raw"
    """A task with one rollout."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: CoDAOptions) -> Floats:
    """(T,) return of the rollout, standardised over the rollouts of the task, for the turns of all levels that learn.

    Each rollout has one vote, shared by its trained turns of the highest level that learns: the planners' (level 0), or
    those of the agents below while the planners are frozen.
    """
    keys = group_ids(table["group"])
    trained, level = np.asarray(table["trained"], bool), np.asarray(table["level"])
    highest = np.full(keys.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(highest, keys[trained], level[trained])
    voter = trained & (level == highest[keys])
    blocks = group_ids(keys, table["episode"])
    count = np.bincount(blocks, voter)[blocks]
    votes = np.where(voter, 1.0 / np.maximum(count, 1.0), 0.0)
    kernel: Normalisation = {"singleton": options.singleton, "eps": options.eps}
    return trained_only(table, group_advantage(table["return"], keys, weights=votes, **kernel))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "coda_peco",
        advantage,
        CoDAOptions,
        summary="rollout return by the statistics of the planners, or of the highest level that learns",
        source="arXiv 2512.12716; liuxuanzhang718/CoDA core_algos.py",
        requires=("group", "episode", "level", "return", "trained"),
        levels=(0, 1),
        confidence="A",
    )
