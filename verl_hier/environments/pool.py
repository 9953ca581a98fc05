"""Environments in processes of their own, behind an asyncio interface that survives hangs and crashes.

A call that exceeds its time limit loses only its own episode: the process is killed, and the other episodes in it are
rebuilt in another one when they are next used, by replaying their actions and comparing every answer with the recorded
one. They do not wait for the limit: a call that has run for a quarter of it is taken to hang, and they leave. Worlds
that cannot be replayed, or whose answers take long, say how many episodes may share a process
(`EnvironmentSpec.neighbours`). An exception loses its own episode and leaves the process running.

Calls of asynchronous environments run side by side in a process, and one that takes too long costs no other anything.

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
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Literal

from verl_hier.environments.async_process import AsyncProcess
from verl_hier.environments.asynchronous import AsyncEnvironment, AsyncOptions, SessionLost, Unavailable, WrongServer
from verl_hier.environments.base import StepResult
from verl_hier.environments.child_process import ChildProcess, Died, Raised, Refused, TookTooLong
from verl_hier.environments.in_worker import InWorker
from verl_hier.environments.process import Process, Stuck
from verl_hier.environments.slots import Slots
from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.environments.tools import Tools
from verl_hier.environments.wire import from_step, to_step
from verl_hier.errors import RecipeError
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec, Fork

PATIENCE = 0.25
"""Share of the time limit after which the episodes that wait for a call go on in another process."""
MOST_PROCESSES = 256
"""Processes of a pool, however few episodes may share one."""
PAUSE_S = 0.25
"""Mean pause before a call that was not taken is made again; it doubles from one to the next."""
logger = logging.getLogger(__name__)

FailureKind = Literal["raised", "timeout", "killed", "replay_mismatch", "unavailable", "session_lost"]
COUNTED = (
    *("calls", "resets", "steps", "forks", "replays", "restarts", "left", "retries", "most_in_flight", "waited_ms"),
    *("raised", "timeouts", "killed", "replay_mismatch", "unavailable", "session_lost"),
)


class EnvironmentFailure(Exception):
    """The environment of an episode failed, and the episode is lost.

    Attributes:
        kind: `raised` (its code raised), `timeout`, `killed` (its process died during its call), `replay_mismatch` (its
            replay gave other answers: the environment is not deterministic), `unavailable` (what it asks did not take a
            call, however often it was made), `session_lost` (and a second time in the call after the session was
            restored).
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message if kind == "raised" else f"{kind}: {message}")
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
        self, pool: EnvironmentPool, process: ChildProcess, number: int, task: Mapping[str, Any], seed: int
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
        self._rebuilds = False  # whether it was made, so that a replay is its recovery and not its making
        self._closed = False
        process.load += 1

    async def step(self, action: str) -> StepResult:
        """Apply an action. Raises `EnvironmentFailure` when the episode is lost, and again at every later call."""
        await self._ensure_alive()
        step = await self._read("step", await self._call("step", action))
        self._pool.counts["steps"] += 1
        self.actions = (*self.actions, action)
        self.steps = (*self.steps, step)
        return step

    async def fork(self) -> Handle:
        """An independent handle in the same state, by the environment's own `fork` or else by a checked replay."""
        if self._pool.forks != "recorded":
            await self._ensure_alive()
        elif self._failure is not None:
            raise self._failure
        copy = Handle(self._pool, self._process, next(self._pool.numbers), self.task, self.seed)
        copy.actions, copy.steps = self.actions, self.steps
        self._pool.counts["forks"] += 1
        if self._pool.forks == "recorded":
            return copy  # made when it is first used
        try:
            if await self._call("fork", copy._number):
                copy._move(self._process)  # this episode may have left the process that it was in
                copy._life, copy._rebuilds = self._life, True
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
        limit = self._pool.limit_of("open") + self._pool.limit_of("step") * len(self.actions)
        history = [[from_step(step) for step in self.steps]] if self._pool.asynchronous else []
        said = await self._call("replay", self.task, self.seed, self.actions, *history, limit_s=limit)
        self._rebuilds = True
        if said is None:
            return  # the environment follows from its history, and asked nobody
        if not isinstance(said, list) or len(said) != len(self.steps):
            raise await self._lose("raised", f"replay was answered with something else than {len(self.steps)} steps")
        again = [await self._read("replay", step) for step in said]
        for number, (was, now) in enumerate(zip(self.steps, again, strict=True)):
            if self._compared(was) != self._compared(now):
                after = f"action {number} ({self.actions[number - 1]!r})" if number else "reset"
                raise await self._lose(
                    "replay_mismatch",
                    f"after {after} the environment answered {was.text!r} and in the replay {now.text!r}; it is not "
                    "deterministic for the same task, seed and actions",
                )

    def _compared(self, step: StepResult) -> tuple[str, bool, bool, str | None]:
        normalise = self._pool.normalise
        if normalise is None:
            return step.text, step.done, step.valid, step.anchor
        anchor = None if step.anchor is None else normalise(step.anchor)
        return normalise(step.text), step.done, step.valid, anchor

    async def close(self) -> None:
        """Free the environment. Safe to call twice and after a failure."""
        if self._closed:
            return
        self._closed = True
        self._process.load -= 1
        if self._failure is None and self._life >= 0 and self._life == self._process.life:
            try:
                await self._process.call("close", self._number, (), self._pool.limit_of("close"))
            except (TookTooLong, Died, Raised, Refused) as error:
                logger.warning("closing an environment failed: %s", error)

    def _move(self, process: ChildProcess) -> None:
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
        step = await self._read("open", await self._call("open", self.task, self.seed))
        self._pool.counts["resets"] += 1
        self.steps, self._rebuilds = (step,), True
        return step

    async def _read(self, method: str, said: Any) -> StepResult:
        """The step that a process answered with; what is none loses the episode."""
        try:
            return to_step(said)
        except (TypeError, ValueError) as error:
            raise await self._lose("raised", f"{method} was answered with no step: {error}") from None

    async def _call(self, method: str, *arguments: Any, limit_s: float | None = None) -> Any:
        self._pool.counts["calls"] += 1
        limit = limit_s or self._pool.limit_of(method)
        retries, sessions = self._pool.retries, 1
        while True:
            sent = False
            try:
                async with self._pool.slots:
                    sent = True
                    return await self._process.call(
                        method, self._number, arguments, limit, self._life, self._pool.patience_s
                    )
            except Stuck:
                await self._leave(method)
            except asyncio.CancelledError:
                if sent or method == "replay":
                    # The environment may have taken the action or not; the next use rebuilds it from the history.
                    self._life = -1
                raise
            except TookTooLong as error:
                raise await self._lose("timeout", f"{method} took longer than {limit:g} s; {error}") from None
            except (Refused, WrongServer) as error:
                if self._goes_on(method, isinstance(error, WrongServer)):
                    raise await self._lose("raised", f"{method} raised {error}") from None
                await self.close()
                raise RecipeError(str(error)) from None
            except Raised as error:
                raise await self._lose("raised", f"{method} raised {error}") from None
            except Unavailable as error:
                if not retries:
                    raise await self._lose("unavailable", f"{method} was not taken: {error}") from None
                await self._pool.pause(self._pool.retries - retries)
                retries -= 1
            except SessionLost as error:
                if not sessions or method == "replay" or not self.steps:
                    raise await self._lose("session_lost", f"during {method}: {error}") from None
                sessions -= 1
                await self._begin_again(method)
            except Died as error:
                if error.during_call:
                    message = f"the process died during {method} ({error})"
                    raise await self._lose("killed", message) from None
                # It died before it began this call, so this episode is not to blame: rebuild it and try again.
                await self._begin_again(method)

    def _goes_on(self, method: str, server: bool) -> bool:
        """Whether a refusal loses this episode alone, because the recipe has worked before.

        Args:
            method: the call that was refused.
            server: whether it is what a server said that is not understood.
        """
        if method == "replay":
            return self._rebuilds  # a fork that cannot be made is the recipe's matter, a recovery is not
        return server and self._pool.counts["resets" if method == "open" else "steps"] > 0

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
        if kind in ("replay_mismatch", "unavailable"):
            await self._process.drop(self._number)
        return self._failure


class EnvironmentPool:
    """Environments of one kind in `processes` processes. Belongs to the event loop that first uses it.

    Args:
        factory: a function or its name, `package.module:function`; called as `factory(options)` in the processes.
        options: picklable options; its class must be importable without heavy packages.
        processes: number of processes; each holds any number of episodes and runs one call at a time, or, of
            asynchronous environments, any number.
        time_limit_s: time limit of one call in seconds.
        start_limit_s: time limit of the start of a process in seconds, imports included.
        neighbours: how many episodes may share a process, see `EnvironmentSpec`; further processes are started where
            they are needed. Forks that the environment makes itself stay in the process of their source.
        asynchronous: how asynchronous environments are called, whose factory is an `asynchronous.Service`; None for
            synchronous ones.
        fork, normalise: see `EnvironmentSpec`.
        tools: given to a spec that runs in the rollout worker (`EnvironmentSpec.in_worker`), whose factory is then
            `factory(options, tools)` and makes an `AsyncEnvironment`; there is no process then. None: processes.
        process: what a process is given.
    """

    def __init__(
        self,
        factory: str | Callable[[Any], Any],
        options: Any = None,
        processes: int = 1,
        time_limit_s: float = 30.0,
        start_limit_s: float = 120.0,
        neighbours: int | None = None,
        asynchronous: AsyncOptions | None = None,
        fork: Fork = "native",
        normalise: Callable[[str], str] | None = None,
        process: ProcessOptions = ProcessOptions(),  # noqa: B008 - frozen
        tools: Tools | None = None,
    ) -> None:
        if processes < 1:
            raise RecipeError(f"hier.environment: the pool needs at least one process, got {processes}.")
        self.time_limit_s = time_limit_s
        self.asynchronous = asynchronous
        self.forks = fork
        self.normalise = normalise
        self.retries = 0 if asynchronous is None else asynchronous.retries
        self.patience_s = None if neighbours == 1 or asynchronous else PATIENCE * time_limit_s
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.numbers = itertools.count()
        factory = lazy(factory) if isinstance(factory, str) else factory
        packages = {made.__module__.partition(".")[0] for made in (factory, type(options))}
        path = f"{factory.__module__}:{factory.__qualname__}"
        setup = (path, pickle.dumps((factory, options)), packages, process)
        self.slots: AbstractAsyncContextManager[None] = nullcontext()
        self._make: Callable[[], ChildProcess] = partial(Process, setup, start_limit_s, self._restarted)
        if asynchronous is not None:
            self.slots = Slots(asynchronous.calls_in_flight, self.counts)
        if asynchronous is not None and tools is not None:
            made: Callable[..., AsyncEnvironment] = factory
            self._make = partial(InWorker, partial(made, options, tools), asynchronous.close_s, self._restarted)
        elif asynchronous is not None:
            self._make = partial(
                AsyncProcess, asynchronous, PATIENCE * time_limit_s, setup, start_limit_s, self._restarted
            )
        self._jitter = random.Random()
        self._least = processes
        self._neighbours = neighbours
        self._processes: list[ChildProcess] = [self._make() for _ in range(processes)]
        self._drops: set[asyncio.Task[None]] = set()

    @classmethod
    def of(
        cls,
        spec: EnvironmentSpec,
        options: Any,
        processes: int = 1,
        time_limit_s: float = 30.0,
        asynchronous: AsyncOptions | None = None,
        process: ProcessOptions = ProcessOptions(),  # noqa: B008 - frozen
        tools: Tools | None = None,
    ) -> EnvironmentPool:
        """A pool of a registered environment; `asynchronous` matters only to one that is.

        Raises:
            RecipeError: when the environment runs in the rollout worker and there is none.
        """
        if spec.in_worker and tools is None:
            raise RecipeError(
                f"hier.environment.name: {spec.name!r} runs in the rollout worker alone, with verl's tools."
            )
        calls = (asynchronous or AsyncOptions()) if spec.asynchronous else None
        return cls(
            spec.factory,
            options,
            1 if spec.in_worker else processes,
            time_limit_s,
            neighbours=spec.neighbours,
            asynchronous=calls,
            fork=spec.fork,
            normalise=spec.normalise,
            process=process.having(spec, options),
            tools=tools if spec.in_worker else None,
        )

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[Handle, StepResult]:
        """A new episode in the process with the fewest open ones, and the answer to its reset."""
        handle = Handle(self, self.place(), next(self.numbers), task, seed)
        try:
            return handle, await handle.open()
        except BaseException:
            await handle.close()
            raise

    async def resume(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> Handle:
        """An episode that did `actions` and was answered with `steps`, first by its reset; rebuilt when it is used."""
        handle = Handle(self, self.place(), next(self.numbers), task, seed)
        handle.actions, handle.steps = tuple(actions), tuple(steps)
        return handle

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

    def place(self) -> ChildProcess:
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

    def limit_of(self, method: str) -> float:
        """Seconds that a call of the method may take."""
        if self.asynchronous is not None and method in ("open", "close"):
            return self.asynchronous.open_s if method == "open" else self.asynchronous.close_s
        return self.time_limit_s

    async def pause(self, earlier: int) -> None:
        """Wait before a call is made again that was not taken, after so many earlier times."""
        self.counts["retries"] += 1
        await asyncio.sleep(PAUSE_S * 2**earlier * self._jitter.uniform(0.5, 1.5))

    def drop_later(self, process: ChildProcess, number: int, life: int) -> None:
        """Free an instance that its episode has left, once its process answers again."""
        task = asyncio.ensure_future(process.drop(number, life))
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)

    def _restarted(self) -> None:
        self.counts["restarts"] += 1
