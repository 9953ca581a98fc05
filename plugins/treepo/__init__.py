"""TreePO (arXiv 2508.17445), docs/estimators/treepo.md."""

from verl_hier_plugins.treepo.estimator import TreePOOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

TREEPO = EstimatorSpec(
    name="treepo",
    factory=advantage,
    options=TreePOOptions,
    summary="leaf against the leaves under each of its ancestors, averaged over the ancestors",
    source="arXiv 2508.17445; multimodal-art-projection/TreePO core_algos.py",
    doc="estimators/treepo.md",
    requires=("n_tokens", "trained", "episodes.return", "episodes.group", "episodes.leaf", "episodes.trained"),
    granularity="step",
    needs_tree=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `treepo`."""
    return [TREEPO]
