"""One episode as its sampler drives it: step it, run it, fork it at a past turn, give it up.

The worker's coroutine runs until it wants to speak and waits there for permission. A fork is a new episode whose
coroutine runs on the recorded answers of its source up to the fork; its world is forked too, or replayed and checked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verl_hier.environments.base import Step
from verl_hier.environments.pool import EnvironmentFailure, Handle
from verl_hier.errors import HierError, RolloutError
from verl_hier.rollout.context import Context
from verl_hier.rollout.interfaces import Worker
from verl_hier.rollout.seeds import generator
from verl_hier.rollout.stage import EpisodeOver, Stage, Turn
from verl_hier.trajectory.graph import EpisodeRecord, Node

if TYPE_CHECKING:
    from verl_hier.rollout.rollout import Rollout


@dataclass(frozen=True)
class Event:
    """One answer that a worker got: a node number for a turn, a step for a reset (`action` None) or an action."""

    node: int = -1
    action: str | None = None
    step: Step | None = None


class Episode:
    """See the module. Made by `Rollout.start` and `Episode.fork`, never directly.

    Attributes:
        greedy: sample the coming turns at temperature 0.
        trained: whether the coming turns are trained.
    """

    def __init__(
        self, rollout: Rollout, record: EpisodeRecord, worker: Worker, lineage: str, script: list[Event] | None = None
    ) -> None:
        self.rollout = rollout
        self.record = record
        self.greedy = record.greedy
        self.trained = True
        self._worker = worker
        self._lineage = lineage
        self._script = script or []
        self._position = 0
        self._events: list[Event] = []
        self._handle: Handle | None = None
        self._step: Step | None = None
        self._at_gate = asyncio.Event()
        self._permits = asyncio.Semaphore(0)
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

    async def step(self) -> Node | None:
        """Let it make one turn, the world's answer included; None when it was over already.

        Raises:
            RolloutError: when the policy server is gone or the worker itself is broken.
        """
        await self._reach_gate()
        if self.over:
            return None
        self._at_gate.clear()
        self._permits.release()
        await self._reach_gate()
        leaf = self.record.leaf
        return self.rollout.graph.nodes[leaf] if leaf >= 0 else None

    async def run(self, turns: int | None = None) -> Episode:
        """Step until it is over, or for `turns` turns."""
        while not self.over and (turns is None or turns > 0):
            await self.step()
            turns = None if turns is None else turns - 1
        return self

    async def fork(self, after: int | None = None, **decision: Any) -> Episode:
        """A new episode that shares the first `after` turns (all of them when omitted) and goes on by itself.

        Args:
            after: number of shared turns, 0 to `len(path)`.
            decision: why; stored with the episode.
        """
        path = self.path
        shared = len(path) if after is None else after
        if not 0 <= shared <= len(path):
            raise ValueError(f"cannot share {shared} of {len(path)} turns")
        script: list[Event] = []
        for event in self._events:
            if event.node >= 0 and event.node not in path[:shared]:
                break
            script.append(event)
        return self.rollout.adopt(self, shared, script, decision)

    def prune(self, reason: str = "") -> None:
        """Give it up: its turns stay in the graph for the record, it is no leaf."""
        if not self.over:
            self._end("pruned", reason or None)
            if self._task is not None:
                self._task.cancel()

    async def close(self) -> None:
        """Free its world. Called by the rollout."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._handle is not None:
            handle, self._handle = self._handle, None
            await handle.close()

    # ---- what its worker uses, through `Stage` -------------------------------------------------------------------

    async def reset(self) -> Step:
        """See `Stage.reset`."""
        if self._position < len(self._script):
            return self._replayed(None)
        try:
            self._handle, step = await self.rollout.open_world()
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        return self._note(Event(step=step), step)

    async def act(self, action: str) -> Step:
        """See `Stage.act`."""
        if self._position < len(self._script):
            return self._replayed(action)
        try:
            if self._handle is None:
                self._handle = await self._catch_up()
            step = await self._handle.step(action)
        except EnvironmentFailure as error:
            raise self._failed(error) from error
        self._answer(step)
        return self._note(Event(action=action, step=step), step)

    async def say(
        self, context: Context, segment: int, plan: int, max_tokens: int | None, stop: tuple[str, ...]
    ) -> Turn:
        """See `Stage.say`."""
        if self._position < len(self._script):
            return self._repeat(context)
        self._at_gate.set()
        await self._permits.acquire()
        if len(self.path) >= self.rollout.limits.max_turns:
            raise EpisodeOver("max_turns")
        prompt, kept = context.prompt()
        room = self.rollout.limits.context_tokens - len(prompt)
        if room <= 0:
            raise EpisodeOver("context_tokens")
        name = f"{self._lineage}/{len(self.path)}"
        wanted = min(room, max_tokens or self.rollout.limits.max_tokens_per_turn)
        sampling = self.rollout.sampling(name, self.greedy, min(wanted, self.rollout.limits.max_tokens_per_turn), stop)
        generation = await self.rollout.policy.generate(prompt, sampling, self.rollout.conversation)
        if not generation.token_ids:
            raise EpisodeOver("empty_action")
        node = Node(
            id=len(self.rollout.graph.nodes),
            parent=self.record.leaf,
            context=context.node if kept else -1,
            episode=self.id,
            agent=context.agent,
            role=context.role,
            level=context.level,
            turn=len(self.path),
            segment=segment,
            plan=plan,
            observation=prompt[kept:],
            action=list(generation.token_ids),
            logprobs=list(generation.logprobs),
            trained=self.trained,
            anchor=None if self._step is None else self._step.anchor,
            policy_version=list(generation.version),
            prompt_tokens=len(prompt),
            cached_tokens=generation.cached_tokens,
            stop_reason=generation.stop_reason,
            decision={"seed": sampling.seed, "greedy": self.greedy},
        )
        self.rollout.graph.nodes.append(node)
        self.record.leaf = node.id
        node.text = context.commit(prompt, node.action, node.id)
        self._events.append(Event(node=node.id))
        return Turn(node)

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
        rng = generator(self.rollout.seed or 0, self.rollout.conversation_seed, self._root_name(), "worker")
        stage = Stage(self, self.rollout.task, rng)
        try:
            await self._worker.run(stage)
            done = self._step is not None and self._step.done
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

    def _root_name(self) -> str:
        return self._lineage.split(">")[0]

    def _end(self, status: Any, reason: str | None) -> None:
        self.record.status = status
        self.record.ret = self.ret
        if status in ("finished", "truncated"):
            won = None if self._step is None else self._step.info.get("won")
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

    def _note(self, event: Event, step: Step) -> Step:
        self._events.append(event)
        self._step = step
        return step

    def _answer(self, step: Step) -> None:
        """Write the world's answer on the turn that was spoken last."""
        self.rollout.count("environment_calls")
        if self.record.leaf < 0:
            return
        node = self.rollout.graph.nodes[self.record.leaf]
        node.reward += step.reward
        node.done, node.truncated = step.done, step.truncated
        node.valid = node.valid and step.valid

    def _replayed(self, action: str | None) -> Step:
        event = self._script[self._position]
        if event.step is None or event.action != action:
            raise RolloutError(
                f"worker {type(self._worker).__name__} did not repeat itself when an episode was forked "
                f"(it wanted {action!r}); its coroutine must depend on `stage` alone."
            )
        self._position += 1
        return self._note(event, event.step)

    def _repeat(self, context: Context) -> Turn:
        event = self._script[self._position]
        prompt, _ = context.prompt()
        if event.node < 0 or prompt != self.rollout.graph.prompt(event.node):
            raise RolloutError(
                f"worker {type(self._worker).__name__} built another prompt when an episode was forked; "
                "its coroutine must depend on `stage` alone."
            )
        self._position += 1
        node = self.rollout.graph.nodes[event.node]
        self.record.leaf = node.id
        context.commit(prompt, node.action, node.id)
        self._events.append(event)
        return Turn(node, live=False)

    async def _catch_up(self) -> Handle:
        """A world in the state that the replayed part of the script left it in."""
        return await self.rollout.world_after([e for e in self._events if e.action is not None])
