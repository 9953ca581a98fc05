"""TreeRL (arXiv 2506.11902), docs/estimators/treerl.md."""

from verl_hier_plugins.treerl.estimator import TreeRLOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

TREERL = EstimatorSpec(
    name="treerl",
    factory=advantage,
    options=TreeRLOptions,
    summary="difference of leave-one-out node values along the tree, plus the value",
    source="arXiv 2506.11902 §3.3; THUDM/TreeRL parallel_mcts.py",
    doc="estimators/treerl.md",
    requires=("episode", "parent", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    needs_tree=True,
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `treerl`."""
    return [TREERL]
