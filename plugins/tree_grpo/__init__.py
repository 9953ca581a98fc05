"""Tree-GRPO (arXiv 2509.21240), docs/estimators/tree_grpo.md and docs/samplers/tree_grpo.md."""

from verl_hier_plugins.tree_grpo.estimator import TreeDiffOptions, TreeGRPOOptions, advantage, tree_diff
from verl_hier_plugins.tree_grpo.sampler import TreeGRPOSampler, TreeGRPOSamplerOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, SamplerSpec

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

SAMPLER = SamplerSpec(
    name="tree_grpo",
    factory=TreeGRPOSampler,
    options=TreeGRPOSamplerOptions,
    summary="trees of whole episodes that branch after randomly drawn turns",
    source="arXiv 2509.21240 §3; AMAP-ML/Tree-GRPO (confidence A)",
    doc="samplers/tree_grpo.md",
    episodes=leaves_of,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `tree_grpo` and `tree_diff`."""
    return [TREE_GRPO, TREE_DIFF]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `tree_grpo` sampler."""
    return [SAMPLER]
