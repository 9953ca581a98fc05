"""MAE (arXiv 2510.23595), docs/estimators/mae.md."""

from verl_hier_plugins.mae.estimator import MAEOptions, advantage, role_rewards

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec
from verl_hier.trajectory.table import TurnTable

MAE = EstimatorSpec(
    name="mae",
    factory=advantage,
    options=MAEOptions,
    summary="proposer, solver and judge rewards, whitened over the batch",
    source="arXiv 2510.23595; MAE rewards/reward_managers.py",
    doc="estimators/mae.md",
    requires=("role", "judge", "format", "n_tokens", "trained", "episodes.return"),
    needs_groups=False,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `mae`."""
    return [MAE]


@hookimpl
def hier_table_ready(table: TurnTable, step: int) -> None:
    """Adds the turn column `mae_reward` where the table has what it takes, for any estimator to score by."""
    roles = (MAEOptions.proposer, MAEOptions.solver, MAEOptions.judge)
    if {"judge", "format"} <= set(table.turns) and all(table.code("role", role) >= 0 for role in roles):
        table.turns["mae_reward"] = role_rewards(table, MAEOptions())
