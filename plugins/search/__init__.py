"""Search: multi-hop questions over two indexed collections of documents, generated or read from files.

BM25 by bm25s, https://arxiv.org/abs/2407.03618. Doc page: docs/environments/search.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_hier_plugins.search.options import SearchOptions

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EnvironmentSpec


def _build(options: SearchOptions) -> Any:
    try:
        import bm25s  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f"hier.environment.name: search cannot import bm25s ({error}); pip install 'verl-hier[search]'."
        ) from error
    from verl_hier_plugins.search.environment import SearchEnvironment

    return SearchEnvironment(options)


def _tasks(options: SearchOptions, split: str) -> list[dict[str, Any]]:
    from verl_hier_plugins.search.tasks import tasks

    return tasks(options, split)


SPEC = EnvironmentSpec(
    name="search",
    factory=_build,
    options=SearchOptions,
    tasks=_tasks,
    can_fork=True,
    summary="multi-hop questions answered by searching a local corpus; generated worlds or HotpotQA-style files",
    source="action tags as Search-R1 (arXiv 2503.09516) and HierSearch (arXiv 2508.08088); BM25 by bm25s",
    doc="environments/search.md",
    extra="search",
    modules=("bm25s",),
)


@hookimpl
def hier_environments() -> Iterable[EnvironmentSpec]:
    """The one environment of this plugin."""
    return [SPEC]
