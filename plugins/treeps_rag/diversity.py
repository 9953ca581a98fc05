"""Which of several searches are kept: the ones that found different documents (arXiv 2601.06922)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.rollout.episode import Episode
from verl_hier.rollout.transcript import Transcript

Measure = Literal["documents", "words"]


@dataclass(frozen=True)
class Search:
    """What the last turn of an episode asked and found.

    Attributes:
        documents: names of what it found, from `info["documents"]` of the world's answers; empty when there are none.
        words: lower-case words of the turn's text.
    """

    documents: frozenset[str]
    words: frozenset[str]

    @classmethod
    def of(cls, episode: Episode) -> Search:
        """The last turn of an episode that has one."""
        last = Transcript.of(episode).turns[-1]
        found = [call.step.info.get("documents") for call in last.calls]
        names = {str(name) for documents in found if isinstance(documents, list | tuple) for name in documents}
        return cls(frozenset(names), frozenset(re.findall(r"\w+", last.text.lower())))

    def similarity(self, other: Search, measure: Measure) -> float:
        """Shared part of the documents, or of the words where that is asked for or one of the two found nothing."""
        if measure == "documents" and self.documents and other.documents:
            return jaccard(self.documents, other.documents)
        return jaccard(self.words, other.words)


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Size of the intersection over size of the union; 1 for two empty sets."""
    union = len(first | second)
    return len(first & second) / union if union else 1.0


def diverse(searches: Sequence[Search], number: int, measure: Measure) -> list[int]:
    """Places of `number` searches that are unlike each other, in their order; all when there are no more.

    The first search is chosen, then again and again the one whose most similar chosen search is the least similar; the
    earlier one on ties.
    """
    if len(searches) <= number:
        return list(range(len(searches)))
    chosen: list[int] = []
    nearest = [-1.0] * len(searches)
    while len(chosen) < number:
        place = min((place for place in range(len(searches)) if place not in chosen), key=nearest.__getitem__)
        chosen.append(place)
        nearest = [
            max(near, search.similarity(searches[place], measure))
            for near, search in zip(nearest, searches, strict=True)
        ]
    return sorted(chosen)
