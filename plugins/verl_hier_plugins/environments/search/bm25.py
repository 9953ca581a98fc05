"""BM25 over some texts, by bm25s (https://arxiv.org/abs/2407.03618)."""

from __future__ import annotations

import logging

import bm25s
import numpy as np

# It says each index that it builds.
logging.getLogger("bm25s").setLevel(logging.WARNING)

WORDS = r"(?u)\b\w+\b"


def split_words(texts: list[str]) -> list[list[str]]:
    """The lower-case words of each text without English stop words."""
    words: list[list[str]] = bm25s.tokenize(
        texts, stopwords="en", token_pattern=WORDS, return_ids=False, show_progress=False
    )
    return words


def index_texts(texts: list[str]) -> bm25s.BM25:
    """A BM25 index of some texts, which are known by their numbers from 0."""
    index = bm25s.BM25(backend="numpy")
    index.index(split_words(texts), show_progress=False)
    return index


def best(index: bm25s.BM25, query: str, k: int) -> list[int]:
    """Numbers of at most `k` texts that share a word with a query, best first; equal scores in order of the numbers."""
    (words,) = split_words([query])
    if not words:
        return []
    # scores [number of texts]
    scores = index.get_scores(words)
    k = min(k, len(scores))
    least = max(float(np.partition(scores, -k)[-k]), np.finfo(np.float32).tiny)
    candidates = np.flatnonzero(scores >= least)
    return [int(number) for number in candidates[np.lexsort((candidates, -scores[candidates]))][:k]]
