"""CoDA with PECO, planner-baselined groups (arXiv 2512.12716), docs/methods/coda.md.

Released form: liuxuanzhang718/CoDA `core_algos.py`. Confidence A, reproduced by a fixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import group_advantage, group_ids, trained_only
from verl_hier.credit.groups import Singleton
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class CoDAOptions:
    """Planners are the turns of level 0."""

    singleton: Singleton = "raw"
    """A task with one rollout."""
    eps: float = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: CoDAOptions) -> NDArray[np.float64]:
    """(T,) the rollout's return by mean and deviation over the planners, for planners and executors alike."""
    keys = group_ids(table["group"])
    planner = (np.asarray(table["level"]) == 0) & np.asarray(table["trained"], bool)
    blocks = group_ids(keys, table["episode"])
    count = np.bincount(blocks, planner)[blocks]
    votes = np.where(planner, 1.0 / np.maximum(count, 1.0), 0.0)
    kernel: dict[str, Any] = {"singleton": options.singleton, "eps": options.eps}
    return trained_only(table, group_advantage(table["return"], keys, weights=votes, **kernel))


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
            "coda_peco",
            advantage,
            CoDAOptions,
            summary="rollout return by the statistics of the planners, for planners and executors",
            source="arXiv 2512.12716; liuxuanzhang718/CoDA core_algos.py",
            doc="methods/coda.md",
            requires=("group", "episode", "level", "return", "trained"),
            levels=(0, 1),
            confidence="A",
        )
    ]
