"""Environments in processes of their own, behind an asyncio interface that survives hangs and crashes.

A call that exceeds its time limit loses only its own episode: the process is killed, and the other episodes in it are
rebuilt in a new one when they are next used, by replaying their actions and comparing every answer with the recorded
one. An exception loses its own episode and leaves the process running.

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
from typing import Any, Literal

from verl_hier.environments.base import StepResult
from verl_hier.environments.process import Died, Process, Raised, Refused, TookTooLong
from verl_hier.errors import RecipeError
from verl_hier.host.specs import lazy

logger = logging.getLogger(__name__)

FailureKind = Literal["raised", "timeout", "killed", "replay_mismatch"]
COUNTED = (
    *("calls", "resets", "steps", "forks", "replays", "restarts"),
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
        step: StepResult = await self._call("step", action)
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
                copy._life = self._life
            else:
                copy._move(self._pool.least_loaded())
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
        again: list[StepResult] = await self._call("replay", self.task, self.seed, self.actions, limit_s=limit)
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
        step: StepResult = await self._call("open", self.task, self.seed)
        self._pool.counts["resets"] += 1
        self.steps = (step,)
        return step

    async def _call(self, method: str, *arguments: Any, limit_s: float | None = None) -> Any:
        self._pool.counts["calls"] += 1
        limit = limit_s or self._pool.time_limit_s
        while True:
            try:
                return await self._process.call(method, self._number, arguments, limit, self._life)
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
                if method == "replay":
                    self._life = await self._process.alive()
                elif self.steps:
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
    """

    def __init__(
        self,
        factory: str | Callable[[Any], Any],
        options: Any = None,
        processes: int = 1,
        time_limit_s: float = 30.0,
        start_limit_s: float = 120.0,
    ) -> None:
        if processes < 1:
            raise RecipeError(f"hier.environment: the pool needs at least one process, got {processes}.")
        self.time_limit_s = time_limit_s
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.numbers = itertools.count()
        factory = lazy(factory) if isinstance(factory, str) else factory
        setup = (f"{factory.__module__}:{factory.__qualname__}", pickle.dumps((factory, options)))
        self._processes = [Process(setup, start_limit_s, self._restarted) for _ in range(processes)]

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[Handle, StepResult]:
        """A new episode in the process with the fewest open ones, and the answer to its reset."""
        handle = Handle(self, self.least_loaded(), next(self.numbers), task, seed)
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

    def least_loaded(self) -> Process:
        """The process with the fewest open episodes."""
        return min(self._processes, key=lambda process: process.load)

    def _restarted(self) -> None:
        self.counts["restarts"] += 1
