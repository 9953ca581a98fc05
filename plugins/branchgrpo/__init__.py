"""BranchGRPO, docs/estimators/branchgrpo.md."""

from verl_hier_plugins.branchgrpo.estimator import BranchGRPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

BRANCHGRPO = EstimatorSpec(
    name="branchgrpo",
    factory=advantage,
    options=BranchGRPOOptions,
    summary="leaf returns averaged up, z-scored among turns of equal depth",
    source="BranchGRPO (abstract)",
    doc="estimators/branchgrpo.md",
    requires=("group", "depth", "trained", "episodes.return"),
    needs_tree=True,
    confidence="C",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `branchgrpo`."""
    return [BRANCHGRPO]
