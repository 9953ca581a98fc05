"""Which skills of a library are shown: by likelihood, by words in common, or by BM25 (bm25s, arXiv 2407.03618)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from verl_hier_plugins.workers.proposer_solver_judge.guards import READ, likeness

KEPT_INDICES = 64
"""Libraries whose indices are kept, since the episodes of a step read few."""


def shares_of(scores: Sequence[float], temperature: float) -> list[float]:
    """Softmax of mean log-probs; a score of -inf has no share."""
    best = max(scores, default=-math.inf)
    if best == -math.inf:
        return [0.0] * len(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


def by_share(shares: Sequence[float], gate: float) -> list[int]:
    """Numbers of the skills with a share of at least `gate`, the largest first."""
    ordered = sorted(range(len(shares)), key=lambda number: -shares[number])
    return [number for number in ordered if shares[number] >= gate]


def by_words(query: str, skills: Sequence[str], gate: float) -> list[int]:
    """Numbers of the skills that have a share of at least `gate` of the words in common with a query, best first."""
    return by_share([likeness(query, skill) for skill in skills], gate)


def by_bm25(query: str, skills: Sequence[str]) -> list[int]:
    """Numbers of the skills that share a word with a query, by BM25, best first; equal ones in their order."""
    from verl_hier_plugins.environments.search.bm25 import best

    kept, index = _index(tuple(skills))
    return [] if index is None else [kept[number] for number in best(index, query[:READ], len(kept))]


@lru_cache(KEPT_INDICES)
def _index(skills: tuple[str, ...]) -> tuple[tuple[int, ...], Any]:
    """The numbers of the skills that have words, and their index; None when none has."""
    from verl_hier_plugins.environments.search.bm25 import index_texts, split_words

    kept = tuple(number for number, words in enumerate(split_words(list(skills))) if words) if skills else ()
    return kept, index_texts([skills[number] for number in kept]) if kept else None
