"""SeeUPO (arXiv 2602.06554), docs/estimators/seeupo.md."""

from verl_hier_plugins.seeupo.estimator import SeeUPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

SEEUPO = EstimatorSpec(
    name="seeupo",
    factory=advantage,
    options=SeeUPOOptions,
    summary="episode z-score times the ratios of the later turns, updated in reverse order",
    source="arXiv 2602.06554 (reading notes)",
    doc="estimators/seeupo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="C",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `seeupo`."""
    return [SEEUPO]
