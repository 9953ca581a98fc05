"""ARISE, docs/estimators/arise.md."""

from verl_hier_plugins.arise.estimator import ARISEOptions, advantage, role_rewards

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec
from verl_hier.trajectory.table import TurnTable

ARISE = EstimatorSpec(
    name="arise",
    factory=advantage,
    options=ARISEOptions,
    summary="task reward plus a reward for skills that helped, z-scored over the task",
    source="Skylanding/ARISE verl/workers/arise/reward.py",
    doc="estimators/arise.md",
    requires=("skill_used", "trained", "episodes.return", "episodes.group", "episodes.trained", "episodes.success"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `arise`."""
    return [ARISE]


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `arise_reward` where the table has what it takes, for any estimator to score by."""
    if "skill_used" in table:
        table.turns["arise_reward"] = role_rewards(table, ARISEOptions())
