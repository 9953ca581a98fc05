"""The rollout of one task: the graph that grows, the world and the policy it grows in, the counters it reports."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool, Handle
from verl_hier.errors import GraphError
from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.rollout.budget import Budget, BudgetOptions, BudgetSpent
from verl_hier.rollout.entropy import EntropyOptions, entropies
from verl_hier.rollout.episode import Episode
from verl_hier.rollout.interfaces import Generation, Policy, Renderer, Sampler, Sampling, Scored, Worker
from verl_hier.rollout.replay_log import Event, insert_before
from verl_hier.rollout.seeds import derive, generator
from verl_hier.rollout.turns import text_of
from verl_hier.rollout.unfinished import UnfinishedEpisode, conversation_name

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
        carried: what earlier steps have left of the task.
    """

    task: Mapping[str, Any]
    identity: Mapping[str, Any]
    n: int
    step: int = 0
    levels: frozenset[int] | None = None
    validate: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    unfinished: tuple[UnfinishedEpisode, ...] = ()

    @classmethod
    def of(cls, graph: RolloutGraph, task: Mapping[str, Any]) -> Request:
        """The request that a stored graph answers.

        Raises:
            GraphError: when the graph does not say.
        """
        asked = graph.request
        if not asked:
            raise GraphError(f"the graph of task {graph.task.get('uid')} does not say what was asked for.")
        return cls(
            task=task,
            identity=graph.task,
            n=asked["n"],
            step=graph.step,
            levels=None if asked["levels"] is None else frozenset(asked["levels"]),
            validate=asked["validate"],
            sampling=Sampling(asked["temperature"], asked["top_p"], asked["top_k"]),
            unfinished=tuple(UnfinishedEpisode.resumed_in(graph)),
        )

    def to_dict(self) -> dict[str, Any]:
        """What the graph keeps of it, for a replay."""
        return {
            "n": self.n,
            "validate": self.validate,
            "levels": None if self.levels is None else sorted(self.levels),
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.sampling.top_k,
        }


class Rollout:
    """What a sampler holds: it starts episodes here and forks them; everything lands in `graph`.

    Attributes:
        n: leaves that the recipe wants trained for one task.
        levels: levels that learn in this step, None for all.
        expected: leaves below which the group counts as short; a sampler lowers it when a phase needs fewer.
        budget: what the task may still cost.
        top_logprobs: how many of the likeliest tokens to keep for each position (`Node.top`); set by a sampler that
            `needs_top_logprobs`.
        vocabulary: size of the model's vocabulary, 0 when unknown.
        carried: episodes that earlier steps have left of the task, oldest first; see `resume`.
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
        budget: BudgetOptions | None = None,
        entropy: EntropyOptions | None = None,
        vocabulary: int = 0,
        on_lost: Callable[[EpisodeRecord], None] = lambda record: None,
    ) -> None:
        self.request = request
        self.task = request.task
        self.n = request.n
        self.levels = request.levels
        self.unfinished = request.unfinished
        self.policy = policy
        self.renderer = renderer
        self.limits = limits
        self.seed = seed
        self.lost = on_lost
        self.conversation = uuid.uuid4().hex
        self.conversation_seed = conversation_name(request.step, request.identity.get("index"), request.validate)
        self.budget = Budget(budget or BudgetOptions())
        self.vocabulary = vocabulary
        self._entropy = entropy or EntropyOptions()
        self.top_logprobs = 0
        self.graph = RolloutGraph(task=dict(request.identity), step=request.step, seed=seed, request=request.to_dict())
        self.expected = request.n
        self.episodes: list[Episode] = []
        self._pool = pool
        self._make_worker = make_worker
        self._root: asyncio.Task[tuple[Handle, StepResult]] | None = None

    # ---- for samplers ---------------------------------------------------------------------------------------------

    def start(self, *, greedy: bool = False, trained: bool = True, **decision: Any) -> Episode:
        """A fresh episode. `trained=False` makes it evaluation-only: it is no leaf to train."""
        tree = 1 + max((e.record.tree for e in self.episodes), default=-1)
        record = EpisodeRecord(len(self.episodes), tree=tree, trained=trained, greedy=greedy, decision=decision)
        origin = f"{self.conversation_seed}/{record.id}"
        return self._enlist(Episode(self, record, self._make_worker(), str(record.id), origin))

    def resume(self, unfinished: UnfinishedEpisode, **decision: Any) -> Episode:
        """An episode of an earlier step, which goes on.

        Its worker and its world run again on the turns that it had; these keep their log-probs and policy versions and
        cost nothing of the budget. What follows is sampled now. A worker that asks otherwise than before, because its
        world answers otherwise, costs the episode (`failed_replay_mismatch`).
        """
        resumed = {"step": unfinished.step, "origin": unfinished.origin}
        episode = self.start(resumed=resumed, **decision)
        episode.restore(unfinished)
        return episode

    async def advance(self, episodes: Iterable[Episode], tokens: int | None = None) -> list[Episode]:
        """One turn of each episode that is not over, side by side; returns those that are not over afterwards.

        Under a budget all of them wait for each other, so that what each may spend does not depend on who was faster;
        the last ones are pruned when not all can be served.

        Args:
            episodes: any episodes of this rollout.
            tokens: see `Episode.step`.
        """
        running = [episode for episode in episodes if not episode.over]
        await self.gather(episode.ready() for episode in running)
        running = [episode for episode in running if not episode.over]
        most = min(self.limits.max_tokens_per_turn, tokens or self.limits.max_tokens_per_turn)
        with ExitStack() as turns:
            grants = [turns.enter_context(grant) for grant in await self.budget.grant(len(running), most)]
            for episode in running[len(grants) :]:
                episode.out_of_budget()
            await self.gather(episode.speak(tokens, grant) for episode, grant in zip(running, grants, strict=False))
        return [episode for episode in running if not episode.over]

    async def run(self, episodes: Iterable[Episode]) -> None:
        """Play episodes to their end, side by side."""
        running = list(episodes)
        if not self.budget.shared:
            await self.gather(episode.run() for episode in running)
        while running:
            running = await self.advance(running)

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two after `at` tokens, so that episodes can be forked there; see `RolloutGraph.split`.

        Returns:
            The first part. `node` stays the last part, its number grows by one.
        """
        first = self.graph.split(node, at)
        said = [token for piece in self.graph.pieces(first)[:-1] for token in piece.action]
        first.text = text_of(self.renderer, said, first.action, True)
        node.text = node.text[len(first.text) :]
        for episode in self.episodes:
            insert_before(episode.events, node, first)
            episode.replay_log.cut(node, first)
        return first

    def entropy_of(self, node: Node) -> list[float]:
        """(L,) estimated entropy (nats) at each token of a node, from the recipe's `hier.rollout.entropy`; empty when
        the server returns no log-probs at all."""
        return node.entropy or [-logprob for logprob in node.logprobs]

    def rng(self, *names: object) -> random.Random:
        """A generator of its own for `names`: same seed, task, step and names give the same draws."""
        return generator(self.seed or 0, self.conversation_seed, *names)

    def adopt(self, source: Episode, shared: int, replay_log: list[Event], decision: dict[str, Any]) -> Episode:
        """Used by `Episode.fork`."""
        self.count("forks")
        record = EpisodeRecord(
            len(self.episodes), source=source.id, shared=shared, tree=source.record.tree, decision=decision
        )
        record.leaf = source.path[shared - 1] if shared else -1
        lineage = f"{source.lineage}>{record.id}@{shared}"
        return self._enlist(Episode(self, record, self._make_worker(), lineage, source.origin, replay_log))

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

    async def generate(self, prompt: list[int], sampling: Sampling) -> Generation:
        """One request to the policy, of this task's conversation."""
        for_entropy = self._entropy.k if self._entropy.source == "top_k" else 0
        wanted = replace(sampling, top_logprobs=max(self.top_logprobs, for_entropy))
        return await self.policy.generate(prompt, wanted, self.conversation)

    async def score(self, prompt: list[int], tokens: list[int], top: int = 0) -> Scored:
        """See `Policy.score`."""
        return await self.policy.score(prompt, tokens, self.conversation, top)

    async def note_entropy(self, node: Node, prompt: list[int], generation: Generation) -> None:
        """Keep what the server said about the tokens it sampled for `node`, after `prompt` and what was forced."""
        forced = len(node.action) - len(generation.token_ids)
        if generation.top_logprobs and self.top_logprobs:
            read = [[[token, 0.0]] for token in node.action[:forced]]
            node.top = read + [[list(pair) for pair in at[: self.top_logprobs]] for at in generation.top_logprobs]
        if generation.token_ids:
            known = await entropies(self._entropy, self.policy, prompt, generation, self.conversation)
            node.entropy = [0.0] * forced + known if len(known) == len(generation.token_ids) else []

    async def open_world(self) -> tuple[Handle, StepResult]:
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
        trained = [e for e in self.episodes if e.record.trained and e.record.status not in ("pruned", "failed")]
        self.budget.used["leaves"] = len(trained)
        if episode.record.trained and self.budget.left("leaves") < 1:
            raise BudgetSpent("leaves")
        self.budget.used["leaves"] += episode.record.trained
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
        await asyncio.wait_for(sampler.sample(rollout), rollout.budget.limits.wall_s)
    except BudgetSpent:
        rollout.count("budget_ended")
    except asyncio.TimeoutError:
        if rollout.budget.limits.wall_s is None or rollout.budget.left("wall_s") > 0:
            raise
        rollout.count("budget_ended")
    finally:
        await rollout.close()
    graph = rollout.graph
    graph.budget = rollout.budget.report()
    graph.sort()
    graph.short = sum(episode.trained for episode in graph.complete()) < rollout.expected
    graph.check()
    return graph
