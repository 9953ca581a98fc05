"""SPO segments (arXiv 2505.23564), docs/estimators/spo.md."""

from verl_hier_plugins.spo.estimator import SPOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

SPO = EstimatorSpec(
    name="spo",
    factory=advantage,
    options=SPOOptions,
    summary="value of a segment minus the value of the one before it",
    source="arXiv 2505.23564 §4.3; SPO tree_episode_generator.py; TreePO compute_spo_advantage",
    doc="estimators/spo.md",
    requires=("group", "parent", "return", "trained"),
    needs_tree=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `spo`."""
    return [SPO]
