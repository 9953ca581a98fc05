"""TreePS-RAG (arXiv 2601.06922), docs/estimators/treeps_rag.md and docs/samplers/treeps_rag.md."""

from verl_hier_plugins.treeps_rag.estimator import TreePSRAGOptions, advantage
from verl_hier_plugins.treeps_rag.sampler import TreePSRAGSampler, TreePSRAGSamplerOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, SamplerSpec

TREEPS_RAG = EstimatorSpec(
    name="treeps_rag",
    factory=advantage,
    options=TreePSRAGOptions,
    summary="mean leaf return below a turn, against the task and the turn before",
    source="arXiv 2601.06922 (reading notes)",
    doc="estimators/treeps_rag.md",
    requires=("episode", "parent", "leaves", "trained", "episodes.return", "episodes.group"),
    needs_tree=True,
    confidence="B",
)

SAMPLER = SamplerSpec(
    name="treeps_rag",
    factory=TreePSRAGSampler,
    options=TreePSRAGSamplerOptions,
    summary="one tree, layer by layer: searches branch, answers end, searches that found the same are pruned",
    source="arXiv 2601.06922 (reading notes, confidence B-)",
    doc="samplers/treeps_rag.md",
    episodes=leaves_of,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `treeps_rag`."""
    return [TREEPS_RAG]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `treeps_rag` sampler."""
    return [SAMPLER]
