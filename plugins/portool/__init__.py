"""PORTool (arXiv 2510.26020), docs/estimators/portool.md."""

from verl_hier_plugins.portool.estimator import PORToolOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

PORTOOL = EstimatorSpec(
    name="portool",
    factory=advantage,
    options=PORToolOptions,
    summary="step against its siblings of the fork plus the z-score of the leaves through it",
    source="arXiv 2510.26020 §3",
    doc="estimators/portool.md",
    requires=("group", "parent", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    needs_tree=True,
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `portool`."""
    return [PORTOOL]
