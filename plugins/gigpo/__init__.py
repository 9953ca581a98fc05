"""GiGPO, groups in groups (arXiv 2505.10978), docs/estimators/gigpo.md."""

from verl_hier_plugins.gigpo.estimator import GiGPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

GIGPO = EstimatorSpec(
    name="gigpo",
    factory=advantage,
    options=GiGPOOptions,
    summary="episode advantage plus an advantage among turns that start in the same state",
    source="arXiv 2505.10978 §3; verl-agent gigpo/core_gigpo.py",
    doc="estimators/gigpo.md",
    requires=("group", "anchor", "reward", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `gigpo`."""
    return [GIGPO]
