"""CoMAS, docs/estimators/comas.md."""

from verl_hier_plugins.comas.estimator import CoMASOptions, advantage, role_rewards

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec
from verl_hier.trajectory.table import TurnTable

COMAS = EstimatorSpec(
    name="comas",
    factory=advantage,
    options=CoMASOptions,
    summary="solver against evaluator by the judge's score, standardised per agent",
    source="CoMAS (recalled)",
    doc="estimators/comas.md",
    requires=("agent", "role", "judge", "format", "trained"),
    needs_groups=False,
    confidence="C",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `comas`."""
    return [COMAS]


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `comas_reward` where the table has what it takes, for any estimator to score by."""
    roles = (CoMASOptions.solver, CoMASOptions.evaluator)
    if {"judge", "format"} <= set(table.turns) and all(table.code("role", role) >= 0 for role in roles):
        table.turns["comas_reward"] = role_rewards(table, CoMASOptions())
