"""Environments in processes of their own, behind an asyncio interface that survives hangs and crashes.

A call that exceeds its time limit loses only its own episode: the process is killed, and the other episodes in it are
rebuilt in another one when they are next used, by replaying their actions and comparing every answer with the recorded
one. They do not wait for the limit: a call that has run for a quarter of it is taken to hang, and they leave. Worlds
that cannot be replayed, or whose answers take long, say how many episodes may share a process
(`EnvironmentSpec.neighbours`). An exception loses its own episode and leaves the process running.

    pool = EnvironmentPool("my_package.environment:build", options, processes=2, time_limit_s=30.0)
    handle, first = await pool.open(task, seed=0)
    step = await handle.step("go to fridge 1")
    other = await handle.fork()
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from verl_hier.environments.base import StepResult
from verl_hier.environments.process import Died, Process, Raised, Refused, Stuck, TookTooLong
from verl_hier.environments.wire import to_step
from verl_hier.errors import RecipeError
from verl_hier.host.specs import lazy

PATIENCE = 0.25
"""Share of the time limit after which the episodes that wait for a call go on in another process."""
MOST_PROCESSES = 256
"""Processes of a pool, however few episodes may share one."""
logger = logging.getLogger(__name__)

FailureKind = Literal["raised", "timeout", "killed", "replay_mismatch"]
COUNTED = (
    *("calls", "resets", "steps", "forks", "replays", "restarts", "left"),
    *("raised", "timeouts", "killed", "replay_mismatch"),
)


class EnvironmentFailure(Exception):
    """The environment of an episode failed, and the episode is lost.

    Attributes:
        kind: `raised` (its code raised), `timeout`, `killed` (its process died during its call), `replay_mismatch` (its
            replay gave other answers: the environment is not deterministic).
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Handle:
    """One episode in one environment. Made by `EnvironmentPool.open` or `fork`; one call at a time.

    Attributes:
        task: the task of the reset.
        seed: the seed of the reset.
        actions: the actions so far.
        steps: the answers so far, beginning with that of the reset; one more than `actions`.
    """

    def __init__(
        self, pool: EnvironmentPool, process: Process, number: int, task: Mapping[str, Any], seed: int
    ) -> None:
        self.task = task
        self.seed = seed
        self.actions: tuple[str, ...] = ()
        self.steps: tuple[StepResult, ...] = ()
        self._pool = pool
        self._process = process
        self._number = number
        self._life = -1
        self._failure: EnvironmentFailure | None = None
        self._closed = False
        process.load += 1

    async def step(self, action: str) -> StepResult:
        """Apply an action. Raises `EnvironmentFailure` when the episode is lost, and again at every later call."""
        await self._ensure_alive()
        step = to_step(await self._call("step", action))
        self._pool.counts["steps"] += 1
        self.actions = (*self.actions, action)
        self.steps = (*self.steps, step)
        return step

    async def fork(self) -> Handle:
        """An independent handle in the same state, by the environment's own `fork` or else by a checked replay."""
        await self._ensure_alive()
        copy = Handle(self._pool, self._process, next(self._pool.numbers), self.task, self.seed)
        copy.actions, copy.steps = self.actions, self.steps
        try:
            self._pool.counts["forks"] += 1
            if await self._call("fork", copy._number):
                copy._move(self._process)  # this episode may have left the process that it was in
                copy._life = self._life
            else:
                copy._move(self._pool.place())
                await copy.replay()
        except BaseException:
            await copy.close()
            raise
        return copy

    async def replay(self) -> None:
        """Rebuild this episode's environment from its history; a differing answer loses the episode."""
        self._pool.counts["replays"] += 1
        self._life = await self._process.alive()
        limit = self._pool.time_limit_s * (1 + len(self.actions))
        said = await self._call("replay", self.task, self.seed, self.actions, limit_s=limit)
        again = [to_step(step) for step in said]
        for number, (was, now) in enumerate(zip(self.steps, again, strict=True)):
            same = (was.text, was.done, was.valid, was.anchor) == (now.text, now.done, now.valid, now.anchor)
            if not same:
                after = f"action {number} ({self.actions[number - 1]!r})" if number else "reset"
                raise await self._lose(
                    "replay_mismatch",
                    f"after {after} the environment answered {was.text!r} and in the replay {now.text!r}; it is not "
                    "deterministic for the same task, seed and actions",
                )

    async def close(self) -> None:
        """Free the environment. Safe to call twice and after a failure."""
        if self._closed:
            return
        self._closed = True
        self._process.load -= 1
        if self._failure is None and self._life >= 0 and self._life == self._process.life:
            try:
                await self._process.call("close", self._number, (), self._pool.time_limit_s)
            except (TookTooLong, Died, Raised, Refused) as error:
                logger.warning("closing an environment failed: %s", error)

    def _move(self, process: Process) -> None:
        self._process.load -= 1
        self._process = process
        process.load += 1

    async def _ensure_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("this handle is closed")
        if await self._process.alive() != self._life:
            await self.replay()

    async def open(self) -> StepResult:
        """Reset the environment; called once, by the pool."""
        self._life = await self._process.alive()
        step = to_step(await self._call("open", self.task, self.seed))
        self._pool.counts["resets"] += 1
        self.steps = (step,)
        return step

    async def _call(self, method: str, *arguments: Any, limit_s: float | None = None) -> Any:
        self._pool.counts["calls"] += 1
        limit = limit_s or self._pool.time_limit_s
        while True:
            try:
                return await self._process.call(
                    method, self._number, arguments, limit, self._life, self._pool.patience_s
                )
            except Stuck:
                await self._leave(method)
            except asyncio.CancelledError:
                # The environment may have taken the action or not; the next use rebuilds it from the history.
                self._life = -1
                raise
            except TookTooLong:
                message = f"{method} took longer than {limit:g} s; its process was killed"
                raise await self._lose("timeout", message) from None
            except Refused as error:
                await self.close()
                raise RecipeError(str(error)) from None
            except Raised as error:
                raise await self._lose("raised", f"{method} raised {error}") from None
            except Died as error:
                if error.during_call:
                    message = f"the process died during {method} ({error})"
                    raise await self._lose("killed", message) from None
                # It died before it began this call, so this episode is not to blame: rebuild it and try again.
                await self._begin_again(method)

    async def _leave(self, method: str) -> None:
        """Go on in another process, because an episode of this one has probably hung up."""
        left, number, life = self._process, self._number, self._life
        if life == left.life:
            self._pool.drop_later(left, number, life)
        self._number = next(self._pool.numbers)
        self._move(self._pool.place())
        self._pool.counts["left"] += 1
        await self._begin_again(method)

    async def _begin_again(self, method: str) -> None:
        """Make the instance anew, unless the call that comes next does so itself."""
        if self.steps and method != "replay":
            await self.replay()
        else:
            self._life = await self._process.alive()

    async def _lose(self, kind: FailureKind, message: str) -> EnvironmentFailure:
        self._failure = EnvironmentFailure(kind, message)
        self._pool.counts["timeouts" if kind == "timeout" else kind] += 1
        if kind == "replay_mismatch":
            await self._process.drop(self._number)
        return self._failure


class EnvironmentPool:
    """Environments of one kind in `processes` processes. Belongs to the event loop that first uses it.

    Args:
        factory: a function or its name, `package.module:function`; called as `factory(options)` in the processes.
        options: picklable options; its class must be importable without heavy packages.
        processes: number of processes; each holds any number of episodes and runs one call at a time.
        time_limit_s: time limit of one call in seconds.
        start_limit_s: time limit of the start of a process in seconds, imports included.
        neighbours: how many episodes may share a process, see `EnvironmentSpec`; further processes are started where
            they are needed. Forks that the environment makes itself stay in the process of their source.
    """

    def __init__(
        self,
        factory: str | Callable[[Any], Any],
        options: Any = None,
        processes: int = 1,
        time_limit_s: float = 30.0,
        start_limit_s: float = 120.0,
        neighbours: int | None = None,
    ) -> None:
        if processes < 1:
            raise RecipeError(f"hier.environment: the pool needs at least one process, got {processes}.")
        self.time_limit_s = time_limit_s
        self.patience_s = None if neighbours == 1 else PATIENCE * time_limit_s
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.numbers = itertools.count()
        factory = lazy(factory) if isinstance(factory, str) else factory
        setup = (f"{factory.__module__}:{factory.__qualname__}", pickle.dumps((factory, options)))
        self._make = partial(Process, setup, start_limit_s, self._restarted)
        self._least = processes
        self._neighbours = neighbours
        self._processes = [self._make() for _ in range(processes)]
        self._drops: set[asyncio.Task[None]] = set()

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[Handle, StepResult]:
        """A new episode in the process with the fewest open ones, and the answer to its reset."""
        handle = Handle(self, self.place(), next(self.numbers), task, seed)
        try:
            return handle, await handle.open()
        except BaseException:
            await handle.close()
            raise

    async def start(self) -> None:
        """Start all processes now instead of on first use."""
        for process in self._processes:
            await process.alive()

    async def kill_processes(self) -> None:
        """Kill every process between two calls, as a crash would; episodes continue by replay. For tests."""
        for process in self._processes:
            await process.kill()

    async def close(self) -> None:
        """Stop all processes. Handles that are still open must not be used afterwards."""
        for process in self._processes:
            await process.stop()

    def place(self) -> Process:
        """The process with the fewest open episodes among those that do not seem to hang; a new one where none has
        room."""
        free = [p for p in self._processes if self.patience_s is None or p.busy_s < self.patience_s]
        if self._neighbours is None:
            room, lacking = free, len(free) < self._least
        else:
            room = [p for p in free if p.load < self._neighbours]
            lacking = not room and len(free) < MOST_PROCESSES
        if lacking:
            self._processes.append(self._make())
            return self._processes[-1]
        return min(room or free or self._processes, key=lambda process: process.load)

    def drop_later(self, process: Process, number: int, life: int) -> None:
        """Free an instance that its episode has left, once its process answers again."""
        task = asyncio.ensure_future(process.drop(number, life))
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)

    def _restarted(self) -> None:
        self.counts["restarts"] += 1
