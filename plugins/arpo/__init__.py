"""ARPO (arXiv 2507.19849), docs/estimators/arpo.md."""

from verl_hier_plugins.arpo.estimator import ARPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

ARPO = EstimatorSpec(
    name="arpo",
    factory=advantage,
    options=ARPOOptions,
    summary="z-score of each chain over the task, soft or hard on shared turns",
    source="arXiv 2507.19849 §3.2; RUC-NLPIR/ARPO (soft)",
    doc="estimators/arpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
    granularity="step",
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `arpo`."""
    return [ARPO]
