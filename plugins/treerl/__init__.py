"""TreeRL (arXiv 2506.11902), docs/estimators/treerl.md and docs/samplers/treerl.md."""

from verl_hier_plugins.treerl.estimator import TreeRLOptions, advantage
from verl_hier_plugins.treerl.sampler import TreeRLSampler, TreeRLSamplerOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, SamplerSpec

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

SAMPLER = SamplerSpec(
    name="treerl",
    factory=TreeRLSampler,
    options=TreeRLSamplerOptions,
    summary="whole episodes that branch at the tokens the policy was least sure of",
    source="arXiv 2506.11902 §3.2; THUDM/TreeRL (EPTree, confidence A)",
    doc="samplers/treerl.md",
    episodes=leaves_of,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `treerl`."""
    return [TREERL]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `treerl` sampler."""
    return [SAMPLER]
