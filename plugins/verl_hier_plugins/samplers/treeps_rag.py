"""One tree a task, layer by layer: searches branch, answers end, unlike ones stay; docs/methods/treeps_rag.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, at_least, fork_episodes, keep_only, start_episodes
from verl_hier.rollout.transcript import Transcript

# Which of several searches are kept: the ones that found different documents (arXiv 2601.06922).
Measure = Literal["documents", "words"]


@dataclass(frozen=True)
class Search:
    """The query and the results of the last turn of an episode.

    Attributes:
        documents: names of what it found, from `info["documents"]` of the observations; empty when there are none.
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


@dataclass(frozen=True)
class TreePSRAGSamplerOptions:
    """Options of `treeps_rag`. `actor_rollout_ref.rollout.n` is the number of leaves."""

    branch: int = 2
    """Candidates for the turn after a search, and for each place in the first layer."""
    width: Count | None = None
    """Searches that a layer keeps at most; omitted: as many as there are leaves missing."""
    similarity: Measure = "documents"
    """What is compared of two searches: the documents they found (their words where none are named), or their words."""

    def __post_init__(self) -> None:
        if self.branch < 2:
            raise ValueError("branch must be at least 2; with one candidate a turn nothing branches")


class TreePSRAGSampler(Sampler):
    """See the module."""

    def __init__(self, options: TreePSRAGSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        missing, wave = rollout.n, 0
        root: Episode | None = None
        while missing:
            size = self._width(missing) * self._options.branch
            first = [] if root else start_episodes(rollout, 1)
            root = root or next(iter(first), None)
            if root is None:
                return
            places = [ForkPoint(root, 0, {"layer": 0, "wave": wave})] * (size - len(first))
            candidates = first + await fork_episodes(rollout, places, beside=len(first))
            grown = await self._grow(rollout, candidates, missing, wave)
            if not grown:
                return
            missing, wave = missing - grown, wave + 1

    async def _grow(self, rollout: Rollout, candidates: list[Episode], missing: int, wave: int) -> int:
        """Grow layer after layer from the candidates of the first; returns the number of leaves."""
        leaves = layer = 0
        while candidates:
            alive = await advance_turn(rollout, candidates)
            answers = [episode for episode in alive if episode.complete]
            leaves += self._keep(rollout, answers, missing - leaves, wave, layer)
            searches = self._prune(rollout, [e for e in alive if not e.over], self._width(missing - leaves))
            layer += 1
            decision = {"layer": layer, "wave": wave}
            places = [ForkPoint(e, decision=decision) for _ in range(self._options.branch - 1) for e in searches]
            candidates = searches + await fork_episodes(rollout, places, beside=len(searches))
        return leaves

    def _width(self, missing: int) -> int:
        return min(missing, self._options.width or missing)

    def _keep(self, rollout: Rollout, answers: list[Episode], number: int, wave: int, layer: int) -> int:
        """Keep the answers as leaves, a random part of them when there are too many; returns how many it keeps."""
        kept = rollout.rng("treeps_rag", wave, layer).sample(answers, min(number, len(answers)))
        keep_only(rollout, answers, kept, "surplus")
        return len(kept)

    def _prune(self, rollout: Rollout, searches: list[Episode], number: int) -> list[Episode]:
        kept = diverse([Search.of(search) for search in searches], number, self._options.similarity)
        for place, search in enumerate(searches):
            if place not in kept:
                search.prune("similar")
                rollout.count("similar")
        return [searches[place] for place in kept]


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "treeps_rag",
        TreePSRAGSampler,
        TreePSRAGSamplerOptions,
        summary="one tree, layer by layer: searches branch, answers end, searches that found the same are pruned",
        source="arXiv 2601.06922 (reading notes, confidence B-)",
        episodes=at_least(2, "treeps_rag sampler grows a tree of n leaves"),
        needs_fork=True,
    )
