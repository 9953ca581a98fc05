"""Task pools: questions on a generated world, or those of a file."""

from __future__ import annotations

from collections import deque
from typing import Any

from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.corpus import FileCorpus, corpus_of
from verl_hier_plugins.environments.search.files import file_tasks
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.questions import generated_tasks


def tasks(options: SearchOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order.

    Each is `{instruction, question, answers, data_source, id}`, with `hops` and `support` (titles of the documents with
    the facts) where they are known; a generated one has `relations` and the `corpus` that it belongs to.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: search has no split {split!r}; it has {', '.join(SPLITS)}.")
    if options.generated:
        return generated_tasks(options, split)
    found = file_tasks(options, split)
    corpus = corpus_of(options)
    assert isinstance(corpus, FileCorpus)
    if corpus.index_path:
        # The first reset would be too late, because its time limit could expire.
        from verl_hier_plugins.environments.search.index import stored

        stored(corpus)
    else:
        # Read once, so that an invalid file is refused before the run starts.
        deque(corpus.documents(), maxlen=0)
    return found
