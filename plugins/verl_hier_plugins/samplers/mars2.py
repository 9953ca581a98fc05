"""MARS²: a search tree of solutions whose arms are agents and refinements (arXiv 2602.07848), docs/methods/mars2.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_part, at_least, fork_episodes, start_episodes, within_segment
from verl_hier.rollout.seeds import generator


@dataclass(frozen=True)
class MARS2SamplerOptions:
    """Options of `mars2`. `actor_rollout_ref.rollout.n` is the number of solutions in the tree of a task."""

    roles: tuple[str, ...] = ()
    """Agents among which the search chooses who writes the next solution; empty: the worker decides."""
    batch: Count = 1
    """Solutions that are written side by side before their rewards count in the next choice."""


@dataclass
class _Solution:
    """A node of the search tree; the one without an episode is the task itself.

    Attributes:
        episode: whose last segment it is.
        score: its reward, between 0 and 1.
        speakers: who wrote it and what is above it.
    """

    episode: Episode | None
    score: float = 0.0
    speakers: tuple[str, ...] = ()
    children: list[_Solution] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether something can follow it, or anything below it."""
        return self.episode is None or not self.episode.over or any(child.open for child in self.children)

    @property
    def scores(self) -> list[float]:
        """Of itself and of everything below."""
        return [self.score, *(score for child in self.children for score in child.scores)]


class MARS2Sampler(Sampler):
    """See the module."""

    def __init__(self, options: MARS2SamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        rng = generator(rollout.seed or 0, rollout.seed_name, "mars2")
        task, made = _Solution(None), 0
        while made < rollout.n:
            number = min(self._options.batch, rollout.n - made)
            chosen = [(place, self._agent(rng, task)) for place in (choose(rng, task) for _ in range(number))]
            written = [await self._begin(rollout, place, agent) for place, agent in chosen]
            began = [episode for episode in written if episode is not None]
            before = {episode.id: len(episode.path) for episode in began}
            await advance_part(rollout, began, within_segment)
            for (place, agent), episode in zip(chosen, written, strict=True):
                if episode is not None and (episode.complete or not episode.over):
                    new = [node.reward for node in episode.nodes[before[episode.id] :]]
                    score = min(max(sum(new), 0.0), 1.0)
                    place.children.append(_Solution(episode, score, (*place.speakers, agent)))
            made += number
            if not began:
                break
        rollout.expected = self._finish(task)

    def _agent(self, rng: random.Random, task: _Solution) -> str:
        """Who writes the next solution: Thompson sampling over what each agent has earned."""
        known: dict[str, list[float]] = {role: [] for role in self._options.roles}
        left = list(task.children)
        while left:
            solution = left.pop()
            known.setdefault(solution.speakers[-1], []).append(solution.score)
            left += solution.children
        draws = {role: draw(rng, known[role]) for role in self._options.roles}
        return max(draws, key=draws.__getitem__, default="")

    async def _begin(self, rollout: Rollout, place: _Solution, agent: str) -> Episode | None:
        """An episode that is about to write a solution behind another one."""
        speakers = {"speakers": [*place.speakers, agent]} if agent else {}
        if place.episode is None:
            return next(iter(start_episodes(rollout, 1, **speakers)), None)
        # Always a fork, since the episode itself waits for the turn of somebody else already.
        point = ForkPoint(place.episode, decision={"refines": place.episode.id, **speakers})
        return next(iter(await fork_episodes(rollout, [point])), None)

    def _finish(self, task: _Solution) -> int:
        """End every episode: as a leaf where nothing refines its last solution. Returns how many leaves there are."""
        left, leaves = list(task.children), 0
        while left:
            solution = left.pop()
            left += solution.children
            assert solution.episode is not None
            if solution.children:
                solution.episode.discard(EndReason.NOT_CHOSEN)
            else:
                solution.episode.stop(EndReason.NOT_CHOSEN)
                leaves += 1
        return leaves


def choose(rng: random.Random, task: _Solution) -> _Solution:
    """Where the next solution goes: from the task down, Thompson sampling between a new child and the children."""
    place = task
    while True:
        arms: Sequence[_Solution] = [child for child in place.children if child.open]
        may_grow = place.episode is None or not place.episode.over
        best, value = place, draw(rng, [child.score for child in place.children]) if may_grow else -1.0
        for child in arms:
            drawn = draw(rng, child.scores)
            if drawn > value:
                best, value = child, drawn
        if best is place:
            return place
        place = best


def draw(rng: random.Random, scores: Sequence[float]) -> float:
    """A draw from the Beta posterior of a share, from a uniform prior."""
    return rng.betavariate(1 + sum(scores), 1 + sum(1 - score for score in scores))


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "mars2",
        MARS2Sampler,
        MARS2SamplerOptions,
        summary="a tree of solutions: Thompson sampling decides what is refined next, and by whom",
        source="arXiv 2602.07848; TsinghuaC3I/MARTI marti/agent_workflows/ab_mcts_processor.py",
        episodes=at_least(2, "mars2 sampler grows n solutions"),
        needs_fork=True,
        sees_outcomes=True,
    )
