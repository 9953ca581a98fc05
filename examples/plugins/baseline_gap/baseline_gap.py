"""How far a turn stays behind the best attempt at its task: the smallest estimator plugin that does something."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from verl_hier.credit import group_ids, rewards_to_go, trained_only
from verl_hier.graph import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.estimator` in a recipe."""

    gamma: float = 1.0
    """Discount of the reward-to-go."""
    scale: float = 1.0
    """Factor of the credit."""


def advantage(table: TurnTable, options: Options) -> NDArray[np.float64]:
    """(T,) reward-to-go minus the best reward-to-go that the task has seen from the same position, scaled."""
    returns = rewards_to_go(table, options.gamma)
    keys = group_ids(table["group"], table["turn"])
    best = np.full(keys.max() + 1, -np.inf)
    np.maximum.at(best, keys, np.where(table["trained"], returns, -np.inf))
    return trained_only(table, options.scale * (returns - best[keys]))


ESTIMATOR = EstimatorSpec(
    name="baseline_gap",
    factory=advantage,
    options=Options,
    summary="reward-to-go minus the best of the task at the same position",
    source="example",
    requires=("group", "turn", "reward", "trained"),
    confidence="C",
)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    """Registers `baseline_gap`."""
    return ESTIMATOR
