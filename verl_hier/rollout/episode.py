"""One episode as its sampler drives it: step it, run it, fork it at a past turn, give it up.

The worker's coroutine runs until it wants to speak and waits there for permission. A fork is a new episode whose
coroutine runs on the recorded answers of its source up to the fork; its world is forked too, or replayed and checked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure, Handle
from verl_hier.errors import HierError, RolloutError
from verl_hier.graph.nodes import EpisodeRecord, Node
from verl_hier.rollout.budget import Grant
from verl_hier.rollout.context import Context
from verl_hier.rollout.episode_view import EpisodeOver, EpisodeView, Turn
from verl_hier.rollout.interfaces import Worker
from verl_hier.rollout.replay_log import Event, ReplayLog
from verl_hier.rollout.seeds import generator
from verl_hier.rollout.turns import Forced, TurnRequest, restored_node, sample_node
from verl_hier.rollout.unfinished import UnfinishedEpisode, sampled_earlier

if TYPE_CHECKING:
    from verl_hier.rollout.rollout import Rollout


class Episode:
    """See the module. Made by `Rollout.start` and `Episode.fork`. A turn that is sampled in pieces is several nodes.

    Attributes:
        greedy: sample the coming turns at temperature 0.
        trained: whether the coming turns are trained.
        latest: what the world answered last; None before the reset, and in a fork before its first step.
        wish: what its worker waits to say; None while it does not wait, see `ready`.
    """

    def __init__(
        self,
        rollout: Rollout,
        record: EpisodeRecord,
        worker: Worker,
        lineage: str,
        origin: str,
        told: Sequence[Event] = (),
    ) -> None:
        self.rollout = rollout
        self.record = record
        self.greedy = record.greedy
        self.trained = True
        self._worker = worker
        self.lineage = lineage
        self.origin = origin
        self.events: list[Event] = []
        self.replay_log = ReplayLog(told, type(worker).__name__)
        self._memory: deque[Node] = deque()
        self.turn_request: TurnRequest | None = None
        self._forced = Forced()
        self._piece: int | None = None
        self._grant: Grant | None = None
        self._handle: Handle | None = None
        self.latest: StepResult | None = None
        self._at_gate = asyncio.Event()
        self._permits = asyncio.Semaphore(0)
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    # ---- what a sampler uses -------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Number of the episode within its task."""
        return self.record.id

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.record.status != "running"

    @property
    def complete(self) -> bool:
        """Whether it ended by the world's or a limit's will, so that its return means something."""
        return self.record.status in ("finished", "truncated")

    @property
    def ret(self) -> float:
        """Sum of the rewards on its path so far."""
        return sum(self.rollout.graph.nodes[i].reward for i in self.path)

    @property
    def path(self) -> list[int]:
        """Its turns so far, as node numbers."""
        return self.rollout.graph.path(self.id)

    @property
    def boundaries(self) -> list[int]:
        """Numbers of shared nodes (`fork(after=…)`) between two turns: 0, and the end of each of its turns so far."""
        nodes = [self.rollout.graph.nodes[i] for i in self.path]
        return [0, *(place for place, node in enumerate(nodes, start=1) if not node.partial)]

    async def step(self, tokens: int | None = None) -> Node | None:
        """Let it make one turn, the world's answer included; None when it was over already.

        Args:
            tokens: sample at most so many tokens. When the turn wants more, the node is `partial` and the next step
                goes on with the same turn; the world answers when the turn is done.

        Raises:
            RolloutError: when the policy server is gone or the worker itself is broken.
        """
        await self.rollout.advance([self], tokens)
        return self.tip

    @property
    def tip(self) -> Node | None:
        """Its last node, None before the first; also of an episode that is over."""
        return self.rollout.graph.nodes[self.record.leaf] if self.record.leaf >= 0 else None

    async def run(self, turns: int | None = None) -> Episode:
        """Step until it is over, or for `turns` turns."""
        while not self.over and (turns is None or turns > 0):
            node = await self.step()
            turns = turns if turns is None or (node is not None and node.partial) else turns - 1
        return self

    async def ready(self) -> bool:
        """Run the worker up to the place where it wants to speak; False when the episode is over instead."""
        await self._reach_gate()
        return not self.over

    async def speak(self, tokens: int | None, grant: Grant) -> None:
        """One turn, or a piece of one, within `grant`. Called by the rollout for an episode that is `ready`."""
        limits = [limit for limit in (tokens, grant.tokens) if limit is not None]
        async with self._one_at_a_time:
            if self.over:
                return
            self._piece = min(limits) if limits else None
            self._grant = grant
            self._at_gate.clear()
            self._permits.release()
            try:
                await self._reach_gate()
            finally:
                self._grant = None

    async def fork(
        self,
        after: int | None = None,
        *,
        forced: list[int] | None = None,
        forced_logprobs: list[float] | None = None,
        **decision: Any,
    ) -> Episode:
        """A new episode that shares the first `after` nodes (all of them when omitted) and goes on by itself.

        Args:
            after: number of shared nodes, 0 to `len(path)`; see `boundaries`.
            forced: token ids that its next node begins with instead of sampling them; a whole turn when they end it.
            forced_logprobs: log p of each of them; see `force`.
            decision: why; stored with the episode and with the first node that it makes.

        Raises:
            BudgetSpent: when no further leaf is allowed.
        """
        path = self.path
        shared = len(path) if after is None else after
        if not 0 <= shared <= len(path):
            raise ValueError(f"cannot share {shared} of {len(path)} turns")
        kept = set(path[:shared])
        replay_log: list[Event] = []
        for event in self.events:
            if event.node is not None and event.node.id not in kept:
                break
            replay_log.append(event)
        episode = self.rollout.adopt(self, shared, replay_log, decision)
        episode.force(forced or [], forced_logprobs)
        if self._handle is not None and len(replay_log) == len(self.events) and self._at_gate.is_set():
            await episode.take_copy_of(self._handle)
        return episode

    def force(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Let its next node begin with given tokens instead of sampling them; a whole turn when they end it.

        Args:
            tokens: token ids; none takes back what was given before.
            logprobs: log p of each of them; omitted: the server is asked, which has to score prompts
                (`SamplerSpec.needs_scores`). It answers at temperature 1.
        """
        self._forced = Forced(list(tokens), None if logprobs is None else list(logprobs))

    def restore(self, unfinished: UnfinishedEpisode) -> None:
        """Begin with the turns of an earlier step. Called by `Rollout.resume`."""
        self.origin, self._memory = unfinished.origin, deque(unfinished.nodes)

    async def take_copy_of(self, handle: Handle) -> None:
        """Start from the world as it is now, which saves the replay of its actions."""
        try:
            self._handle = await handle.fork()
        except EnvironmentFailure as error:
            self._failed(error)

    def stop(self, reason: str) -> None:
        """End it here as a leaf that counts, `truncated` for `reason`."""
        if not self.over:
            self._end("truncated", reason)
            self.record.success = None  # neither won nor lost
            if self._task is not None:
                self._task.cancel()

    def prune(self, reason: str = "") -> None:
        """Give it up: its turns stay in the graph for the record, it is no leaf."""
        if not self.over:
            self._end("pruned", reason or None)
            if self._task is not None:
                self._task.cancel()

    def discard(self, reason: str) -> None:
        """Give it up although it may be complete: it is no leaf, so its turns count only where a kept episode shares
        them; its outcome stays in the record."""
        self.prune(reason)
        if self.complete:
            self.record.status, self.record.error = "pruned", reason

    def out_of_budget(self) -> None:
        """Give it up because the task may cost no more."""
        if not self.over:
            self.rollout.count("budget_pruned")
        self.prune("budget")

    async def close(self) -> None:
        """Free its world. Called by the rollout."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._handle is not None:
            handle, self._handle = self._handle, None
            await handle.close()

    # ---- what its worker uses, through `EpisodeView` --------------------------------------------------------------

    async def reset(self) -> StepResult:
        """See `EpisodeView.reset`."""
        if self.replay_log.goes_on:
            return self._note(None, self.replay_log.step(None))
        try:
            self._handle, step = await self.rollout.open_world()
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        return self._note(None, step)

    async def act(self, action: str) -> StepResult:
        """See `EpisodeView.act`."""
        if self.replay_log.goes_on:
            return self._note(action, self.replay_log.step(action))
        again = self.tip is not None and sampled_earlier(self.tip)
        if not (again or (self._grant or self.rollout.budget).spend_call()):
            self.out_of_budget()
            raise EpisodeOver("budget")
        try:
            if self._handle is None:
                self._handle = await self.rollout.world_after([e for e in self.events if e.action is not None])
            step = await self._handle.step(action)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        self.rollout.count("replayed_calls" if again else "environment_calls")
        self._answer(step)
        return self._note(action, step)

    async def generate(
        self, context: Context, segment: int, plan: Node | None, max_tokens: int | None, stop: tuple[str, ...]
    ) -> Turn:
        """See `EpisodeView.say`."""
        prompt, kept = context.prompt()
        wanted = min(max_tokens or self.rollout.limits.max_tokens_per_turn, self.rollout.limits.max_tokens_per_turn)
        said: list[int] = []
        node: Node | None = None
        live = False
        while node is None or node.partial:
            if self.replay_log.goes_on:
                node = self.replay_log.node(prompt + said, self.rollout.graph)
            else:
                live = True
                before = node or (context.node if kept else None)
                added, heard = ([], []) if node else (prompt[kept:], context.heard(kept > 0))
                turn_request = TurnRequest(context, before, added, heard, segment, plan)
                if self._memory:
                    node = self._restored(turn_request)
                else:
                    node = await self._sample(turn_request, prompt + said, wanted - len(said), stop)
            self.record.leaf = node.id
            self.events.append(Event(node=node))
            said = said + node.action
        text = context.commit(prompt, said, node)
        return Turn(self.rollout.graph, node, text, live)

    async def _sample(self, turn_request: TurnRequest, prompt: list[int], wanted: int, stop: tuple[str, ...]) -> Node:
        """Wait for permission, then sample one node after `prompt`."""
        self.turn_request = turn_request
        self._at_gate.set()
        await self._permits.acquire()
        self.turn_request, tip = None, self.tip
        if (0 if tip is None else tip.turn + (not tip.partial)) >= self.rollout.limits.max_turns:
            raise EpisodeOver("max_turns")
        forced, self._forced = self._forced, Forced()
        room = self.rollout.limits.context_tokens - len(prompt)
        if room < max(len(forced.tokens), 1):
            raise EpisodeOver("context_tokens")
        node, generation = await sample_node(self, turn_request, prompt, forced, min(room, wanted), self._piece, stop)
        if not node.action:
            raise EpisodeOver("empty_action")
        self.rollout.graph.nodes.append(node)
        if self._grant is not None:
            self._grant.spend_turn(len(generation.token_ids))
        await self.rollout.note_entropy(node, prompt + forced.tokens, generation)
        return node

    def _restored(self, turn_request: TurnRequest) -> Node:
        """The next node of an earlier step."""
        try:
            node = restored_node(self, turn_request, self._memory.popleft())
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        self.rollout.graph.nodes.append(node)
        self.rollout.count("carried_tokens", len(node.action))
        return node

    # ---- inside ---------------------------------------------------------------------------------------------------

    async def _reach_gate(self) -> None:
        """Wait until the worker wants to speak, or the episode is over."""
        if self._task is None and not self.over:
            self._task = asyncio.create_task(self._play())
        gate, end = asyncio.ensure_future(self._at_gate.wait()), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({gate, end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gate.cancel()
            end.cancel()
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    async def _play(self) -> None:
        rng = generator(self.rollout.seed or 0, self.origin, "worker")
        episode = EpisodeView(self, self.rollout.task, rng)
        try:
            await self._worker.run(episode)
            done = self.latest is not None and self.latest.done
            self._end("finished" if done else "truncated", None if done else "worker_stopped")
        except EpisodeOver as reason:
            if not self.over:
                self._end("truncated", str(reason))
        except (HierError, asyncio.CancelledError):
            self._ended.set()
            raise
        except Exception as error:
            self._ended.set()
            raise RolloutError(
                f"worker {type(self._worker).__name__} raised {type(error).__name__}: {error}; "
                "this is a fault of the worker plugin named by `hier.worker.name`."
            ) from error

    def _end(self, status: Any, reason: str | None) -> None:
        self.record.status = status
        self.record.ret = self.ret
        if status in ("finished", "truncated"):
            won = None if self.latest is None else self.latest.info.get("won")
            self.record.success = None if won is None else bool(won)
            if status == "truncated" and self.record.leaf >= 0 and reason is not None:
                leaf = self.rollout.graph.nodes[self.record.leaf]
                leaf.truncated = leaf.truncated or not leaf.done
        self.record.error = None if status == "finished" else reason
        self._ended.set()

    def _failed(self, error: EnvironmentFailure) -> EpisodeOver:
        self.rollout.count(f"failed_{error.kind}")
        self._end("failed", f"{error.kind}: {error}")
        self.rollout.lost(self.record)
        return EpisodeOver("environment")

    def _note(self, action: str | None, step: StepResult) -> StepResult:
        self.events.append(Event(action=action, step=step))
        self.latest = step
        return step

    def _answer(self, step: StepResult) -> None:
        """Write the world's answer on the turn that was spoken last."""
        if self.record.leaf < 0:
            return
        node = self.rollout.graph.nodes[self.record.leaf]
        node.reward += step.reward
        node.done, node.truncated = step.done, step.truncated
        node.valid = node.valid and step.valid
