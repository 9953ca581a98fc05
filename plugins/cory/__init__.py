"""CORY (arXiv 2410.06101), docs/estimators/cory.md."""

from verl_hier_plugins.cory.estimator import CORYOptions, advantage, role_rewards

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec
from verl_hier.trajectory.table import TurnTable

CORY = EstimatorSpec(
    name="cory",
    factory=advantage,
    options=CORYOptions,
    summary="pioneer and observer share the sum of their rewards",
    source="arXiv 2410.06101; imdb_train/cory.py",
    doc="estimators/cory.md",
    requires=("group", "role", "reward", "trained", "episodes.return"),
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `cory`."""
    return [CORY]


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `cory_reward` where the table has what it takes, for any estimator to score by."""
    if all(table.code("role", role) >= 0 for role in CORYOptions.roles):
        table.turns["cory_reward"] = role_rewards(table, CORYOptions())
