"""One tree a task, layer by layer: searches branch, answers end, unlike ones stay; docs/samplers/treeps_rag.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier_plugins.treeps_rag.diversity import Measure, Search, diverse

from verl_hier.errors import RecipeError
from verl_hier.rollout import Sampler
from verl_hier.rollout.branching import Place, forks, starts, whole_turn
from verl_hier.rollout.episode import Episode
from verl_hier.rollout.rollout import Rollout


@dataclass(frozen=True)
class TreePSRAGSamplerOptions:
    """Options of `treeps_rag`. `actor_rollout_ref.rollout.n` is the number of leaves."""

    branch: int = 2
    """Candidates for the turn after a search, and for each place in the first layer."""
    width: int | None = None
    """Searches that a layer keeps at most; omitted: as many as there are leaves missing."""
    similarity: Measure = "documents"
    """What is compared of two searches: the documents they found (their words where a world names none), or words."""

    def __post_init__(self) -> None:
        if self.branch < 2:
            raise ValueError("branch must be at least 2; with one candidate a turn nothing branches")
        if self.width is not None and self.width < 1:
            raise ValueError("width must be at least 1")


def leaves_of(options: TreePSRAGSamplerOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: for fewer than two.
    """
    if n < 2:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the treeps_rag sampler grows a tree of n leaves, so n >= 2; got {n}."
        )
    return n


class TreePSRAGSampler(Sampler):
    """See `plugins/treeps_rag`."""

    def __init__(self, options: TreePSRAGSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        missing, wave = rollout.n, 0
        root: Episode | None = None
        while missing:
            size = self._width(missing) * self._options.branch
            first = [] if root else starts(rollout, 1)
            root = root or next(iter(first), None)
            if root is None:
                return
            places = [Place(root, 0, {"layer": 0, "wave": wave})] * (size - len(first))
            candidates = first + await forks(rollout, places, beside=len(first))
            grown = await self._grow(rollout, candidates, missing, wave)
            if not grown:
                return
            missing, wave = missing - grown, wave + 1

    async def _grow(self, rollout: Rollout, candidates: list[Episode], missing: int, wave: int) -> int:
        """Grow layer after layer from the candidates of the first; returns the number of leaves that came of it."""
        leaves = layer = 0
        while candidates:
            alive = await whole_turn(rollout, candidates)
            answers = [episode for episode in alive if episode.complete]
            leaves += self._keep(rollout, answers, missing - leaves, wave, layer)
            searches = self._prune(rollout, [e for e in alive if not e.over], self._width(missing - leaves))
            layer += 1
            decision = {"layer": layer, "wave": wave}
            places = [Place(e, decision=decision) for _ in range(self._options.branch - 1) for e in searches]
            candidates = searches + await forks(rollout, places, beside=len(searches))
        return leaves

    def _width(self, missing: int) -> int:
        return min(missing, self._options.width or missing)

    def _keep(self, rollout: Rollout, answers: list[Episode], number: int, wave: int, layer: int) -> int:
        """Make leaves of the answers, of a random part of them when they are too many; returns how many it made."""
        kept = rollout.rng("treeps_rag", wave, layer).sample(answers, min(number, len(answers)))
        for answer in answers:
            if answer not in kept:
                answer.discard("surplus")
                rollout.count("surplus")
        return len(kept)

    def _prune(self, rollout: Rollout, searches: list[Episode], number: int) -> list[Episode]:
        kept = diverse([Search.of(search) for search in searches], number, self._options.similarity)
        for place, search in enumerate(searches):
            if place not in kept:
                search.prune("similar")
                rollout.count("similar")
        return [searches[place] for place in kept]
