"""TreePS-RAG (arXiv 2601.06922), docs/estimators/treeps_rag.md."""

from verl_hier_plugins.treeps_rag.estimator import TreePSRAGOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

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


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `treeps_rag`."""
    return [TREEPS_RAG]
