"""Tree-GRPO (arXiv 2509.21240), docs/estimators/tree_grpo.md."""

from verl_hier_plugins.tree_grpo.estimator import TreeDiffOptions, TreeGRPOOptions, advantage, tree_diff

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

TREE_GRPO = EstimatorSpec(
    name="tree_grpo",
    factory=advantage,
    options=TreeGRPOOptions,
    summary="leaf z-score over the task plus z-score inside its tree",
    source="arXiv 2509.21240 §3; AMAP-ML/Tree-GRPO ray_trainer_ts.py",
    doc="estimators/tree_grpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.tree", "episodes.trained"),
    granularity="step",
    needs_tree=True,
    confidence="A",
)

TREE_DIFF = EstimatorSpec(
    name="tree_diff",
    factory=tree_diff,
    options=TreeDiffOptions,
    summary="mean leaf return below a turn plus its gain over the parent, damped by the leaves",
    source="AMAP-ML/Tree-GRPO tree_node.py (reward_mode tree_diff)",
    doc="estimators/tree_grpo.md",
    requires=("group", "episode", "parent", "leaves", "trained", "episodes.return", "episodes.tree"),
    needs_tree=True,
    confidence="B",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `tree_grpo` and `tree_diff`."""
    return [TREE_GRPO, TREE_DIFF]
