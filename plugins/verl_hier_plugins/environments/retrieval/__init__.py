"""Retrieval: the questions of `search`, whose documents come from a server over HTTP, or from the web.

Doc page: docs/environments/retrieval.md.
"""

from verl_hier.environments.base import FINAL_ANSWER
from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.retrieval.options import RetrievalOptions

SPEC = EnvironmentSpec(
    "retrieval",
    lazy("verl_hier_plugins.environments.retrieval.environment:service"),
    RetrievalOptions,
    tasks=lazy("verl_hier_plugins.environments.retrieval.environment:tasks"),
    fork="recorded",
    names_states=True,
    info=("won", "score", "f1", "documents", "recall", "commands"),
    says_won=True,
    provides=(FINAL_ANSWER,),
    splits=SPLITS,
    pool=pool,
    asynchronous=True,
    secrets=("key_env",),
    summary="the questions of `search` with a retriever over HTTP in Search-R1's form, or a web search by a key",
    source="the request and answer of Search-R1's retrieval server (arXiv 2503.09516)",
    extra="retrieval",
    modules=("aiohttp",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC
