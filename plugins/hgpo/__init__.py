"""HGPO, docs/estimators/hgpo.md."""

from verl_hier_plugins.hgpo.estimator import HGPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

HGPO = EstimatorSpec(
    name="hgpo",
    factory=advantage,
    options=HGPOOptions,
    summary="advantages among turns with equal last 1, 2 … states, larger contexts weigh more",
    source="verl-agent recipe/hgpo/core_hgpo.py",
    doc="estimators/hgpo.md",
    requires=("group", "anchor", "parent", "reward", "trained"),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `hgpo`."""
    return [HGPO]
