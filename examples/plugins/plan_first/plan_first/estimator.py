"""Plans are compared with the other plans of the task, executions with the other executions of their plan."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from verl_hier.credit import turn_advantage
from verl_hier.graph import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.estimator` in a recipe."""

    plan_weight: float = 1.0
    """Factor of the credit of plans."""


def advantage(table: TurnTable, options: Options) -> NDArray[np.float64]:
    """(T,) the return of a turn's episodes against its group: the task's plans, or the executions of one plan."""
    is_plan = table["level"] == 0
    plans = turn_advantage(table, table["return"], ("group",), where=is_plan)
    executions = turn_advantage(table, table["return"], ("group", "plan"), weight_by="episode", where=~is_plan)
    return np.where(is_plan, options.plan_weight * plans, executions)


ESTIMATOR = EstimatorSpec(
    name="plan_first",
    factory=advantage,
    options=Options,
    summary="plans against plans, executions of a plan against each other",
    source="example",
    requires=("group", "episode", "level", "plan", "return", "trained"),
    levels=(0, 1),
)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    """Registers the estimator `plan_first`."""
    return ESTIMATOR
