"""The two collections as BM25 indices (bm25s), built once a process, or once a machine in a folder on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import bm25s

from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.bm25 import best, index_texts
from verl_hier_plugins.environments.search.corpus import COLLECTIONS, Corpus, FileCorpus, Found

FORMAT = 1
KEPT_LIBRARIES = 4
KEPT_QUERIES = 4096

Search = Callable[[str, int], tuple[Found, ...]]


class Collection:
    """One index and its documents; the results of the latest queries are cached.

    Attributes:
        search: `search(query, k)` returns at most `k` documents that share a word with the query, best first. Equal
            scores are in the order of the documents, so equal queries have equal results in every process.
    """

    def __init__(self, index: bm25s.BM25, documents: Sequence[dict[str, Any]], numbered: bool) -> None:
        self._index = index
        self._documents = documents
        self._numbered = numbered
        self.search: Search = lru_cache(KEPT_QUERIES)(self._search)

    def _search(self, query: str, k: int) -> tuple[Found, ...]:
        return tuple(self._found(self._documents[number]) for number in best(self._index, query, k))

    def _found(self, document: dict[str, Any]) -> Found:
        title = document["title"]
        return Found(f"{title} #{document['number']}" if self._numbered else title, title, document["text"])


Library = dict[str, Collection]
"""Collections by name, without empty ones."""


@lru_cache(KEPT_LIBRARIES)
def library(corpus: Corpus) -> Library:
    """The indices of a corpus, cached.

    Raises:
        RecipeError: when its files are invalid.
    """
    numbered = isinstance(corpus, FileCorpus)
    if isinstance(corpus, FileCorpus) and corpus.index_path:
        folder = stored(corpus)
        names = [name for name in COLLECTIONS if (folder / name).is_dir()]
        return {name: _load(folder / name) for name in names}
    return {
        name: Collection(_index(documents), documents, numbered) for name, documents in _by_collection(corpus).items()
    }


def stored(corpus: FileCorpus) -> Path:
    """The folder of a corpus below `index_path`; built if there is none for the present state of the files."""
    key = hashlib.sha256(json.dumps([FORMAT, asdict(corpus), _stamps(corpus)], sort_keys=True).encode()).hexdigest()
    folder = Path(corpus.index_path).expanduser() / f"bm25-{key[:16]}"
    if folder.is_dir():
        return folder
    collections = _by_collection(corpus)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written elsewhere and renamed, so that an existing folder is complete.
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as beside:
            for name, documents in collections.items():
                _index(documents).save(Path(beside, "whole", name), corpus=documents, show_progress=False)
            # Fails when another process was faster; its folder is equal.
            with contextlib.suppress(OSError):
                Path(beside, "whole").rename(folder)
    except OSError as error:
        raise RecipeError(
            f"hier.environment.index_path: nothing can be written below {folder.parent}: {error}."
        ) from error
    if not folder.is_dir():
        raise RecipeError(f"hier.environment.index_path: {folder} cannot be made.")
    return folder


def _load(folder: Path) -> Collection:
    index = bm25s.BM25.load(folder, mmap=True, load_corpus=True, show_progress=False)
    return Collection(index, index.corpus, numbered=True)


def _by_collection(corpus: Corpus) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in COLLECTIONS}
    for number, document in enumerate(corpus.documents()):
        found[document.collection].append({"number": number, "title": document.title, "text": document.text})
    return {name: documents for name, documents in found.items() if documents}


def _index(documents: list[dict[str, Any]]) -> bm25s.BM25:
    return index_texts([f"{document['title']} {document['text']}" for document in documents])


def _stamps(corpus: FileCorpus) -> list[tuple[int, int]]:
    """Size and modification time of the existing files; reading the others raises an error."""
    named = (corpus.corpus_path,) if corpus.corpus_path else corpus.question_paths
    paths = (Path(path).expanduser() for path in named)
    return [(stat.st_size, stat.st_mtime_ns) for path in paths if path.is_file() and (stat := path.stat())]
