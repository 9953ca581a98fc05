"""The rollout of one task: the graph that grows, the world and the policy it grows in, the counters it reports."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from verl_hier.environments.base import Step
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool, Handle
from verl_hier.rollout.episode import Episode, Event
from verl_hier.rollout.interfaces import Policy, Renderer, Sampler, Sampling, Worker
from verl_hier.rollout.seeds import derive
from verl_hier.trajectory.graph import EpisodeRecord, RolloutGraph

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one episode may take; see `config.RolloutOptions`."""

    max_turns: int = 30
    max_tokens_per_turn: int = 512
    context_tokens: int = 4096


@dataclass(frozen=True)
class Request:
    """One task to roll out.

    Attributes:
        task: JSON-able task of the environment; `instruction` is the task in words.
        identity: what the graph keeps of it: `uid`, `index`, `data_source`.
        n: leaves to train.
        step: trainer step; with `index` it names the random generators.
        levels: levels that learn in this step, None for all; a sampler need not roll out what only others need.
        validate: evaluation only.
        sampling: temperature, top-p and top-k of the recipe.
    """

    task: Mapping[str, Any]
    identity: Mapping[str, Any]
    n: int
    step: int = 0
    levels: frozenset[int] | None = None
    validate: bool = False
    sampling: Sampling = field(default_factory=Sampling)


class Rollout:
    """What a sampler holds: it starts episodes here and forks them; everything lands in `graph`.

    Attributes:
        n: leaves that the recipe wants trained for one task.
        levels: levels that learn in this step, None for all.
        expected: leaves below which the group counts as short; a sampler lowers it when a phase needs fewer.
    """

    def __init__(
        self,
        request: Request,
        *,
        policy: Policy,
        renderer: Renderer,
        pool: EnvironmentPool,
        make_worker: Callable[[], Worker],
        limits: Limits,
        seed: int | None,
        on_lost: Callable[[EpisodeRecord], None] = lambda record: None,
    ) -> None:
        self.request = request
        self.task = request.task
        self.n = request.n
        self.levels = request.levels
        self.policy = policy
        self.renderer = renderer
        self.limits = limits
        self.seed = seed
        self.lost = on_lost
        self.conversation = uuid.uuid4().hex
        self.conversation_seed = f"{request.step}/{request.identity.get('index')}/{int(request.validate)}"
        self.graph = RolloutGraph(task=dict(request.identity), step=request.step, seed=seed)
        self.expected = request.n
        self.episodes: list[Episode] = []
        self._pool = pool
        self._make_worker = make_worker
        self._root: asyncio.Task[tuple[Handle, Step]] | None = None

    # ---- for samplers ---------------------------------------------------------------------------------------------

    def start(self, *, greedy: bool = False, trained: bool = True, **decision: Any) -> Episode:
        """A fresh episode. `trained=False` makes it evaluation-only: it is no leaf to train."""
        tree = 1 + max((e.record.tree for e in self.episodes), default=-1)
        record = EpisodeRecord(len(self.episodes), tree=tree, trained=trained, greedy=greedy, decision=decision)
        return self._enlist(Episode(self, record, self._make_worker(), lineage=str(record.id)))

    def adopt(self, source: Episode, shared: int, script: list[Event], decision: dict[str, Any]) -> Episode:
        """Used by `Episode.fork`."""
        self.count("forks")
        record = EpisodeRecord(
            len(self.episodes), source=source.id, shared=shared, tree=source.record.tree, decision=decision
        )
        lineage = f"{source._lineage}>{record.id}@{shared}"
        return self._enlist(Episode(self, record, self._make_worker(), lineage, script))

    async def gather(self, work: Iterable[Awaitable[T]]) -> list[T]:
        """Run things side by side; the first fatal error cancels the rest and is raised."""
        tasks = [asyncio.ensure_future(item) for item in work]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the graph."""
        self.graph.counts[name] = self.graph.counts.get(name, 0) + by

    # ---- for episodes ---------------------------------------------------------------------------------------------

    def sampling(self, name: str, greedy: bool, max_tokens: int, stop: tuple[str, ...]) -> Sampling:
        """How the turn called `name` is sampled."""
        seed = None if self.seed is None else derive(self.seed, self.conversation_seed, name)
        base = replace(self.request.sampling, max_tokens=max_tokens, seed=seed, stop=stop)
        return replace(base, temperature=0.0, top_p=1.0, top_k=-1) if greedy else base

    async def open_world(self) -> tuple[Handle, Step]:
        """A world at the start of the task: a fork of one that was reset once, which is cheaper than another reset."""
        if self._root is None:
            seed = derive(self.seed or 0, "environment", self.request.identity.get("index"))
            self._root = asyncio.ensure_future(self._pool.open(dict(self.task), seed))
        handle, step = await asyncio.shield(self._root)
        return await handle.fork(), step

    async def world_after(self, events: list[Event]) -> Handle:
        """A world after the recorded actions, replayed and checked.

        Raises:
            EnvironmentFailure: also when a replayed observation differs from the recorded one.
        """
        handle, _ = await self.open_world()
        for event in events:
            step = await handle.step(str(event.action))
            self.count("replayed_calls")
            if event.step is None or step.text != event.step.text:
                await handle.close()
                raise EnvironmentFailure("replay_mismatch", f"{event.action!r} was answered differently in the replay")
        return handle

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _enlist(self, episode: Episode) -> Episode:
        self.episodes.append(episode)
        self.graph.episodes.append(episode.record)
        return episode

    async def close(self) -> None:
        """End what still runs and free every world."""
        for episode in self.episodes:
            episode.prune("sampler_finished")
        await asyncio.gather(*(episode.close() for episode in self.episodes), return_exceptions=True)
        if self._root is not None:
            root = await asyncio.gather(self._root, return_exceptions=True)
            if isinstance(root[0], tuple):
                await root[0][0].close()


async def roll_out(rollout: Rollout, sampler: Sampler) -> RolloutGraph:
    """Let `sampler` roll out one task and return its checked graph.

    Raises:
        RolloutError: when the policy server is gone or a plugin is broken.
    """
    try:
        await sampler.sample(rollout)
    finally:
        await rollout.close()
    graph = rollout.graph
    graph.short = sum(episode.trained for episode in graph.complete()) < rollout.expected
    graph.check()
    return graph
