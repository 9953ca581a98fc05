"""What a sampler works with: the rollout of one task, and its episodes, which it steps, runs, forks and gives up.

The worker's coroutine runs until it wants a turn and waits there for permission. A fork is a new episode whose
coroutine runs on the recorded answers of its source up to the fork; its environment is forked too, or replayed and
compared.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.graph.nodes import EpisodeRecord, Node
from verl_hier.rollout.budget import BudgetSpent, Grant
from verl_hier.rollout.end_reason import EndReason
from verl_hier.rollout.episode_state import EpisodeState, Forced
from verl_hier.rollout.replay_log import Event, insert_before
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.task import Request, RolloutSetup, TaskRollout
from verl_hier.rollout.turns import text_of
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.rollout.worker import Worker, play

T = TypeVar("T")


class Episode(EpisodeState):
    """One episode. Made by `Rollout.start`, `Rollout.resume` and `Episode.fork`.

    What a sampler reads of it: `id`, `record`, `over`, `complete`, `ret`, `path`, `nodes`, `boundaries`, `last_node`,
    `last_result` and `turn_request`; it may set `greedy` and `trained` for the coming turns. See `EpisodeState`.
    """

    rollout: Rollout

    def __init__(
        self,
        rollout: Rollout,
        record: EpisodeRecord,
        worker: Worker,
        seed_name: str,
        worker_seed_name: str,
        replayed: Sequence[Event] = (),
    ) -> None:
        super().__init__(rollout, record, type(worker).__name__, seed_name, worker_seed_name, replayed)
        self._worker = worker
        self._play: asyncio.Task[None] | None = None
        self._one_turn_at_a_time = asyncio.Lock()
        self._given_up: asyncio.Task[None] | None = None

    @property
    def boundaries(self) -> list[int]:
        """Numbers of shared nodes (`fork(after=…)`) between two turns: 0, and the end of each of its turns so far."""
        return [0, *(place for place, node in enumerate(self.nodes, start=1) if not node.partial)]

    async def step(self, tokens: int | None = None) -> Node | None:
        """Let it make one turn, the environment's answer included, and return its last node; see `Rollout.advance`.

        Args:
            tokens: sample at most so many tokens. When the turn wants more, the node is `partial` and the next step
                continues the turn; the environment answers when the turn is complete.

        Raises:
            RolloutError: when the policy server is gone or the worker itself is broken.
        """
        await self.rollout.advance([self], tokens)
        return self.last_node

    async def run(self, turns: int | None = None) -> Episode:
        """Step until it is over, or for `turns` turns."""
        while not self.over and (turns is None or turns > 0):
            node = await self.step()
            turns = turns if turns is None or (node is not None and node.partial) else turns - 1
        return self

    async def ready(self) -> bool:
        """Run the worker until it asks for a turn; False when the episode ends before."""
        if self._play is None and not self.over:
            self._play = asyncio.create_task(play(self._worker, self))
        await self.paused.wait()
        if self._play is not None and self._play.done() and not self._play.cancelled():
            error = self._play.exception()
            if error is not None:
                raise error
        return not self.over

    async def take_turn(self, tokens: int | None, grant: Grant) -> None:
        """One turn, or a piece of one, within `grant`. Called by the rollout for an episode that is `ready`."""
        async with self._one_turn_at_a_time:
            if self.over:
                return
            self.grant = grant
            self.most_tokens = min((limit for limit in (tokens, grant.tokens) if limit is not None), default=None)
            self.turn_request = None
            self.paused.clear()
            self.permits.release()
            try:
                await self.ready()
            except asyncio.CancelledError:
                if not self.paused.is_set():
                    self._given_up = asyncio.create_task(self._pay(grant.kept()))
                raise
            finally:
                if self._given_up is None:
                    self.grant = None

    async def _pay(self, grant: Grant) -> None:
        """Hold the grant of a turn that was given up until the turn is over: the policy answers all the same."""
        with grant:
            await self.paused.wait()
            self.grant = self._given_up = None

    async def fork(
        self,
        after: int | None = None,
        *,
        forced: list[int] | None = None,
        forced_logprobs: list[float] | None = None,
        trained: bool = True,
        **decision: Any,
    ) -> Episode:
        """A new episode that shares the first `after` nodes (all of them when omitted) and goes on by itself.

        Args:
            after: number of shared nodes, 0 to `len(path)`; see `boundaries`.
            forced: token ids that its next node begins with instead of sampling them; a whole turn when they end it.
            forced_logprobs: log p of each of them; see `force`.
            trained: False makes it evaluation-only: it is no leaf, and the turns that it makes are not trained.
            decision: why; stored with the episode and with the first node that it makes. `stand_ins` leaves out roles,
                see `Rollout.start`; none of them may have taken one of the shared turns.

        Raises:
            BudgetSpent: when no further leaf is allowed.
        """
        path, rollout = self.path, self.rollout
        shared = len(path) if after is None else after
        if not 0 <= shared <= len(path):
            raise ValueError(f"cannot share {shared} of {len(path)} turns")
        kept = set(path[:shared])
        # A fork that has not gone on yet has been given nothing, but shares its source's answers all the same.
        answers, replayed = [*self.events, *self.replay_log.left], list[Event]()
        for event in answers:
            if event.node is not None and event.node.id not in kept:
                break
            replayed.append(event)
        rollout.count("forks")
        if left_out := {**self.stand_ins, **decision.get("stand_ins", {})}:
            decision["stand_ins"] = left_out
        record = EpisodeRecord(
            len(rollout.episodes),
            source=self.id,
            shared=shared,
            tree=self.record.tree,
            trained=trained,
            decision=decision,
        )
        record.leaf = path[shared - 1] if shared else -1
        seed_name = f"{self.seed_name}>{record.id}@{shared}"
        fork = Episode(rollout, record, rollout.make_worker(), seed_name, self.worker_seed_name, replayed)
        rollout.register(fork)
        fork.trained = trained
        self.keep_rewards_after(kept)
        fork.force(forced or [], forced_logprobs)
        if self.handle is not None and len(replayed) == len(answers) and self.turn_request is not None:
            try:
                fork.handle = await self.handle.fork()  # saves the replay of its actions
            except EnvironmentFailure as error:
                fork.fail(error)
        return fork

    def force(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Let its next node begin with given tokens instead of sampling them; a whole turn when they end it.

        Args:
            tokens: token ids; none takes back what was given before.
            logprobs: log p of each of them; omitted: the server is asked, which has to score prompts
                (`SamplerSpec.needs_scores`). It answers at the temperature of the turn.
        """
        self.forced = Forced(list(tokens), None if logprobs is None else list(logprobs))

    def stop(self, reason: EndReason | str) -> None:
        """End it here as a leaf that counts, `truncated` for `reason`; it neither solved nor failed the task."""
        if not self.over:
            self.end("truncated", reason)
            self.record.success = None
            self.rollout.without_word = [record for record in self.rollout.without_word if record is not self.record]
            self._cancel()

    def prune(self, reason: EndReason | str = "") -> None:
        """Give it up: its turns stay in the graph for the record, but it is no leaf."""
        if not self.over:
            self.end("pruned", reason or None)
            self._cancel()

    def discard(self, reason: EndReason | str) -> None:
        """Give it up although it may be complete: it is no leaf, so its turns count only where a kept episode shares
        them; its outcome stays in the record."""
        self.prune(reason)
        if self.complete:
            self.end("pruned", reason)

    def withhold(self) -> None:
        """Do not train a complete episode, but let its return count for the turns that it shares with kept leaves.

        Estimators see such a leaf in the column `episodes.withheld`; only those that make values of all leaves read it.
        """
        self.record.trained = False
        self.record.decision["kept"] = False

    async def close(self) -> None:
        """Free its environment. Called by the rollout."""
        self.ahead.give_up()
        if self._play is not None:
            self._play.cancel()
            await asyncio.gather(self._play, return_exceptions=True)
        if self.handle is not None:
            handle, self.handle = self.handle, None
            await handle.close()

    def _cancel(self) -> None:
        if self._play is not None:
            self._play.cancel()


class Rollout(TaskRollout):
    """The rollout of one task: a sampler starts episodes here and forks them; everything is stored in `graph`.

    Attributes:
        make_worker: makes the worker of each episode.
        n: leaves that the recipe wants trained for one task.
        levels: levels that learn in this step, None for all.
        expected: leaves below which the group counts as short; a sampler lowers it when a phase needs fewer.
        episodes: all episodes so far, in the order of their numbers.
    """

    def __init__(
        self, request: Request, setup: RolloutSetup, make_worker: Callable[[], Worker], roles: Roles | None = None
    ) -> None:
        super().__init__(request, setup, roles)
        self.n = self.expected = request.n
        self.levels = request.levels
        self.episodes: list[Episode] = []
        self.make_worker = make_worker

    def start(self, *, greedy: bool = False, trained: bool = True, **decision: Any) -> Episode:
        """A fresh episode. `trained=False` makes it evaluation-only: it is no leaf to train.

        Args:
            greedy: sample at temperature 0.
            trained: whether it is a leaf to train. Its turns are trained all the same where forks share them, unless
                its own `trained` is set to False.
            decision: why; stored with the episode. `stand_ins`, a role to a text each, leaves roles out of it: they
                take no turn, and the text stands for their messages (`EpisodeView.stand_ins`).

        Raises:
            BudgetSpent: when no further leaf is allowed.
        """
        tree = 1 + max((e.record.tree for e in self.episodes), default=-1)
        record = EpisodeRecord(len(self.episodes), tree=tree, trained=trained, greedy=greedy, decision=decision)
        worker_seed_name = f"{self.seed_name}/{record.id}"
        return self.register(Episode(self, record, self.make_worker(), str(record.id), worker_seed_name))

    def resume(self, unfinished: UnfinishedEpisode, **decision: Any) -> Episode:
        """Continue an episode that an earlier step has left unfinished.

        Its worker and its environment run again on the turns that it had; these keep their log-probs and policy
        versions and cost nothing of the budget. The turns after them are sampled now. When a prompt differs from the
        one of the earlier step, the episode is lost (`failed_replay_mismatch`).

        Raises:
            BudgetSpent: when no further leaf is allowed.
        """
        resumed = {"step": unfinished.step, "origin": unfinished.worker_seed_name}
        episode = self.start(resumed=resumed, **decision)
        episode.worker_seed_name, episode.earlier_nodes = unfinished.worker_seed_name, deque(unfinished.nodes)
        episode.earlier_reset = unfinished.reset
        return episode

    async def advance(self, episodes: Iterable[Episode], tokens: int | None = None) -> list[Episode]:
        """One turn of each episode that is not over, side by side; returns those that are not over afterwards.

        Under a budget they wait for each other, so that what each may spend does not depend on which is faster; when
        not all can be served, the last ones are pruned. Several calls side by side share the budget too, but then the
        order of their answers decides which call is served first.

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
                if not episode.over:
                    self.count("budget_pruned")
                episode.prune(EndReason.BUDGET)
            await self.gather(episode.take_turn(tokens, grant) for episode, grant in zip(running, grants, strict=False))
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
        before = [token for piece in self.graph.pieces(first)[:-1] for token in piece.action]
        first.text = text_of(self.renderer, before, first.action, True)
        node.text = node.text[len(first.text) :]
        for episode in self.episodes:
            insert_before(episode.events, node, first)
            episode.replay_log.cut(node, first)
        return first

    def entropy_of(self, node: Node) -> list[float]:
        """(L,) estimated entropy (nats) at each token of a node, from the recipe's `hier.rollout.entropy`; empty when
        the server returns no log-probs at all."""
        return node.entropy or [-logprob for logprob in node.logprobs]

    def register(self, episode: Episode) -> Episode:
        """Add a new episode. Called by `start` and `Episode.fork`.

        Raises:
            BudgetSpent: when no further leaf is allowed.
        """
        trained = [e for e in self.episodes if e.record.trained and e.record.status not in ("pruned", "failed")]
        self.budget.used["leaves"] = len(trained)
        if episode.record.trained and self.budget.left("leaves") < 1:
            raise BudgetSpent("leaves")
        self.budget.used["leaves"] += episode.record.trained
        self.episodes.append(episode)
        self.graph.episodes.append(episode.record)
        return episode

    async def gather(self, work: Iterable[Awaitable[T]]) -> list[T]:
        """Run things side by side; the first fatal error cancels the rest and is raised."""
        items = list(work)
        if len(items) == 1:
            return [await items[0]]
        tasks = [asyncio.ensure_future(item) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def close(self) -> None:
        """End what still runs and free every environment."""
        for episode in self.episodes:
            episode.prune(EndReason.SAMPLER_FINISHED)
        await asyncio.gather(*(episode.close() for episode in self.episodes), return_exceptions=True)
        await super().close()
