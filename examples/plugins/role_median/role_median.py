"""Every role against the median of its role, with a reward shaper: an estimator and an event hook in one plugin."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from verl_hier.credit import Credit, turn_advantage
from verl_hier.graph import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.estimator` in a recipe."""

    scale: Literal["mad", "sample", "none"] = "mad"
    """What the distance to the median is divided by."""
    skip_short: int = 0
    """Turns with at most this many tokens leave the loss."""


def advantage(table: TurnTable, options: Options) -> Credit:
    """Credit per turn: the return against the median return of the task's turns of the same role."""
    scores, keys = table["return"], ("group", "role")
    values = turn_advantage(
        table, scores, keys, weight_by="role", centre="median", scale=options.scale, zero_variance="std", eps=1e-3
    )
    return Credit(values, weight=(table["n_tokens"] > options.skip_short).astype(np.float64))


ESTIMATOR = EstimatorSpec(
    name="role_median",
    factory=advantage,
    options=Options,
    summary="return against the median of the task's turns of the same role",
    source="example",
    requires=("group", "episode", "role", "return", "n_tokens", "trained"),
    confidence="C",
)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    """Registers `role_median`."""
    return ESTIMATOR


@hookimpl
def hier_metrics(table: TurnTable, credit: Credit, step: int) -> dict[str, float]:
    """The share of turns that this estimator keeps in the loss."""
    kept = 1.0 if credit.weight is None else float((np.asarray(credit.weight) > 0).mean())
    return {"hier/role_median/kept_share": kept}
