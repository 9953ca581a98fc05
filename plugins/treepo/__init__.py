"""TreePO (arXiv 2508.17445), docs/estimators/treepo.md and docs/samplers/treepo.md."""

from verl_hier_plugins.treepo.estimator import TreePOOptions, advantage
from verl_hier_plugins.treepo.sampler import TreePOSampler, TreePOSamplerOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, SamplerSpec

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

SAMPLER = SamplerSpec(
    name="treepo",
    factory=TreePOSampler,
    options=TreePOSamplerOptions,
    summary="one tree of segments of a fixed length that falls back to earlier segments",
    source="arXiv 2508.17445 §3 (confidence B)",
    doc="samplers/treepo.md",
    episodes=leaves_of,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `treepo`."""
    return [TREEPO]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `treepo` sampler."""
    return [SAMPLER]
