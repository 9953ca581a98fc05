"""HRPO of MasHost (arXiv 2506.08507), docs/estimators/hrpo.md."""

from verl_hier_plugins.hrpo.estimator import HRPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

HRPO = EstimatorSpec(
    name="hrpo",
    factory=advantage,
    options=HRPOOptions,
    summary="z-score of the agent graph plus the absolute reward of the action",
    source="arXiv 2506.08507 (reading notes)",
    doc="estimators/hrpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained", "step_score"),
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `hrpo`."""
    return [HRPO]
