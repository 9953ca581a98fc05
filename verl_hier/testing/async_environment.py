"""Conformance check of an asynchronous environment, beside `check_environment`. Call it from your own tests:

check_async_environment(SPEC, options, ["search lake", "answer 3"])
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool, Handle
from verl_hier.host.specs import EnvironmentSpec
from verl_hier.testing.environment_spec import tasks_to_play
from verl_hier.testing.relay import Relay

EPISODES = 8
"""Episodes that are played side by side."""
CANCELLED_AFTER_S = (0.0, 0.001, 0.005, 0.02, 0.1)
LIMIT_S = 1.0
"""Least time limit of a call to a server that does not answer; it is longer where an episode takes longer."""
WITHOUT_SERVER = ("unavailable", "session_lost", "timeout")
"""What a call may be lost to that no server answers."""
Answers = list[tuple[str, float, bool, bool, bool, str | None]]


def check_async_environment(
    spec: EnvironmentSpec,
    options: Any,
    actions: Sequence[str],
    server: tuple[str, int] | None = None,
    through: Callable[[int], Any] | None = None,
    seed: int = 0,
    split: str = "train",
) -> None:
    """Play an asynchronous environment and fail with a sentence where it breaks its contract.

    Checked: episodes that are played side by side in one process have the answers that each has alone; a call may be
    cancelled at any moment, and the episode goes on as if it had not been made; one call in flight is enough; closed
    environments, cancelled calls and the service leave no task and no open file behind.

    With `server` and `through` also: a server that does not answer costs the episode that asks it, and the others go on
    once it does; an episode whose connections are cut either goes on where it was or is lost, but never goes on
    elsewhere; without a server an episode is lost as `unavailable` or `session_lost`, which says that its own code is
    not at fault.

    Args:
        spec: the registered environment; `check_environment` checks the rest of it.
        options: its options.
        actions: what an episode does, at least two actions; it need not end with them.
        server: host and port of the server that the options name.
        through: `through(port)` gives the options with a server at this port of 127.0.0.1 in place of its own.
        seed: seed of the episodes.
        split: split whose first task is played.

    Raises:
        AssertionError: with a sentence about what is wrong.
    """
    assert spec.asynchronous, f"{spec.name}: its spec does not say asynchronous=True; use check_environment alone"
    assert len(actions) > 1, "give at least two actions"
    (task,) = tasks_to_play(spec, options, split, 1)
    asyncio.run(_Check(spec, options, task, seed, tuple(actions)).run(server, through))


@dataclass(frozen=True)
class _Check:
    spec: EnvironmentSpec
    options: Any
    task: Mapping[str, Any]
    seed: int
    actions: tuple[str, ...]

    async def run(self, server: tuple[str, int] | None, through: Callable[[int], Any] | None) -> None:
        began = time.monotonic()
        alone = await self._in_pool(self.options, self._alone)
        limit_s = max(LIMIT_S, time.monotonic() - began)
        await self._in_pool(self.options, lambda pool: self._side_by_side(pool, alone))
        await self._in_pool(self.options, lambda pool: self._cancelled(pool, alone))
        await self._in_pool(self.options, lambda pool: self._side_by_side(pool, alone), calls_in_flight=1)
        await self._check_leaks()
        if server is None or through is None:
            return
        async with Relay(*server) as relay:
            options = through(relay.port)
            await self._in_pool(options, lambda pool: self._slow(pool, relay, alone), time_limit_s=limit_s)
            await self._in_pool(options, lambda pool: self._cut(pool, relay, alone))
            await self._in_pool(options, lambda pool: self._gone(pool, relay), time_limit_s=limit_s)

    async def _in_pool(
        self,
        options: Any,
        play: Callable[[EnvironmentPool], Awaitable[Any]],
        time_limit_s: float = 60.0,
        calls_in_flight: int = 256,
    ) -> Any:
        asynchronous = AsyncOptions(calls_in_flight=calls_in_flight, retries=1)
        pool = EnvironmentPool.of(self.spec, options, time_limit_s=time_limit_s, asynchronous=asynchronous)
        try:
            return await play(pool)
        finally:
            await pool.close()

    async def _alone(self, pool: EnvironmentPool) -> Answers:
        handle = await self._opened(pool)
        await self._play(handle, self.actions)
        return _answers(handle)

    async def _side_by_side(self, pool: EnvironmentPool, alone: Answers) -> None:
        handles = [await self._opened(pool) for _ in range(EPISODES)]
        await asyncio.gather(*(self._play(handle, self.actions) for handle in handles))
        for handle in handles:
            self._same(alone, handle, "an episode has other answers while others are played in its process")
            await handle.close()

    async def _cancelled(self, pool: EnvironmentPool, alone: Answers) -> None:
        for delay in CANCELLED_AFTER_S:
            handle = await self._opened(pool)
            await self._play(handle, self.actions[:1])
            call = asyncio.ensure_future(handle.step(self.actions[1]))
            await asyncio.sleep(delay)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await self._play(handle, self.actions[len(handle.actions) :])
            self._same(alone, handle, "an episode does not go on where it was after a call that was cancelled")
            await handle.close()

    async def _slow(self, pool: EnvironmentPool, relay: Relay, alone: Answers) -> None:
        other, handle = await self._opened(pool), await self._opened(pool)
        await self._play(other, self.actions[:1])
        relay.hold()
        failure = await self._failure(handle.step(self.actions[0]))
        relay.flow()
        assert failure is not None and failure.kind in WITHOUT_SERVER, (
            f"{self.spec.name}: a step while the server does not answer is "
            f"{'answered' if failure is None else f'lost as {failure.kind}: {failure.message}'}"
        )
        await self._play(other, self.actions[1:])
        self._same(alone, other, "an episode is not what it was after the server did not answer another one")

    async def _cut(self, pool: EnvironmentPool, relay: Relay, alone: Answers) -> None:
        handle = await self._opened(pool)
        await self._play(handle, self.actions[:1])
        relay.cut()
        failure = await self._failure(self._play(handle, self.actions[1:]))
        if failure is None:
            self._same(alone, handle, "an episode goes on elsewhere after its connections were cut")
        else:
            assert failure.kind in WITHOUT_SERVER, (
                f"{self.spec.name}: connections that were cut are told as {failure}; raise SessionLost or Unavailable"
            )

    async def _gone(self, pool: EnvironmentPool, relay: Relay) -> None:
        handle = await self._opened(pool)
        relay.refuse()
        failure = await self._failure(handle.step(self.actions[0]))
        relay.flow()
        assert failure is not None and failure.kind in WITHOUT_SERVER, (
            f"{self.spec.name}: a step without a server is "
            f"{'answered' if failure is None else f'lost as {failure}'}; raise Unavailable or SessionLost"
        )

    async def _check_leaks(self) -> None:
        """In this process, where tasks and files can be counted."""
        async with self.spec.factory(self.options) as make:
            await self._open_and_close(make)  # loads what stays, such as connections that are kept
            for attempt in reversed(range(3)):
                before = _resources()
                for _ in range(3):
                    await self._open_and_close(make)
                left = {what: count - before[what] for what, count in _resources().items() if count > before[what]}
                if not left:
                    break
                # Something else in this process may have opened one, but not three times in a row.
                assert attempt, f"{self.spec.name}: three environments were closed and left behind: {left}"
        await asyncio.sleep(0)
        tasks = len(asyncio.all_tasks()) - 1
        assert not tasks, f"{self.spec.name}: its service was left and {tasks} of its tasks go on"

    async def _open_and_close(self, make: Callable[[], Any]) -> None:
        environment = make()
        await environment.reset(self.task, self.seed)
        await environment.step(self.actions[0])
        call = asyncio.ensure_future(environment.step(self.actions[1]))
        await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await environment.close()
        gc.collect()

    async def _opened(self, pool: EnvironmentPool) -> Handle:
        handle, _ = await pool.open(self.task, self.seed)
        return handle

    async def _play(self, handle: Handle, actions: Sequence[str]) -> None:
        for action in actions:
            await handle.step(action)

    async def _failure(self, call: Awaitable[Any]) -> EnvironmentFailure | None:
        try:
            await call
        except EnvironmentFailure as failure:
            return failure
        return None

    def _same(self, expected: Answers, handle: Handle, sentence: str) -> None:
        got = _answers(handle)
        for number, (was, now) in enumerate(zip(expected, got, strict=True)):
            assert was == now, f"{self.spec.name}: {sentence}: step {number} was {was} and then {now}"


def _answers(handle: Handle) -> Answers:
    return [_answer(step) for step in handle.steps]


def _answer(step: StepResult) -> tuple[str, float, bool, bool, bool, str | None]:
    return step.text, step.reward, step.done, step.truncated, step.valid, step.anchor


def _resources() -> dict[str, int]:
    """Tasks of the event loop and open files of this process."""
    return {"tasks": len(asyncio.all_tasks()), "open files": psutil.Process().num_fds()}
