"""IGPO (arXiv 2510.14967), docs/estimators/igpo.md."""

from verl_hier_plugins.igpo.estimator import IGPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

IGPO = EstimatorSpec(
    name="igpo",
    factory=advantage,
    options=IGPOOptions,
    summary="information gain of the turns and the outcome, z-scored jointly, then discounted",
    source="arXiv 2510.14967 §3; GuoqingWang1/IGPO core_algos.py (form repo)",
    doc="estimators/igpo.md",
    requires=("group", "info_gain", "trained", "episodes.return", "episodes.leaf"),
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `igpo`."""
    return [IGPO]
