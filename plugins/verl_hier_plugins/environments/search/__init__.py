"""Search: multi-hop questions over two indexed collections of documents, generated or read from files.

BM25 by bm25s, https://arxiv.org/abs/2407.03618. Doc page: docs/environments/search.md.
"""

from verl_hier.environments.base import FINAL_ANSWER
from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.search.options import SearchOptions

SPEC = EnvironmentSpec(
    "search",
    lazy("verl_hier_plugins.environments.search.environment:SearchEnvironment"),
    SearchOptions,
    tasks=lazy("verl_hier_plugins.environments.search.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.search.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score", "f1", "documents", "recall", "commands"),
    says_won=True,
    provides=(FINAL_ANSWER,),
    splits=SPLITS,
    pool=pool,
    summary="multi-hop questions answered by searching a local corpus; generated worlds or HotpotQA-style files",
    source="action tags as Search-R1 (arXiv 2503.09516) and HierSearch (arXiv 2508.08088); BM25 by bm25s",
    extra="search",
    modules=("bm25s",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
