"""HBPO (arXiv 2507.15844), docs/estimators/hbpo.md."""

from verl_hier_plugins.hbpo.estimator import HBPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

HBPO = EstimatorSpec(
    name="hbpo",
    factory=advantage,
    options=HBPOOptions,
    summary="budget-shaped reward against its budget and against the whole task",
    source="arXiv 2507.15844",
    doc="estimators/hbpo.md",
    requires=(
        "budget",
        "n_tokens",
        "trained",
        "episodes.return",
        "episodes.group",
        "episodes.leaf",
        "episodes.trained",
    ),
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `hbpo`."""
    return [HBPO]
