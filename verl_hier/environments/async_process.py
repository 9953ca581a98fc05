"""The pool's end of a process with asynchronous environments: many calls at once, each with a number of its own.

The child keeps the time limits, so a call costs the rollout worker a message each way and no timer. Two watchdogs see
to a child that keeps none: its own, which names the call that blocks it, and the one here, for all else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.asynchronous import AsyncOptions, SessionLost, Unavailable, WrongServer
from verl_hier.environments.child_process import (
    STOP_LIMIT_S,
    ChildProcess,
    Died,
    Raised,
    Refused,
    Setup,
    TookTooLong,
)
from verl_hier.environments.frames import Frames

GLANCE_S = 1.0
GRACE_S = 5.0
"""Seconds past the time limit of a call after which a child that says nothing is killed."""
ERRORS: dict[str, type[Exception]] = {
    "raised": Raised,
    "refused": Refused,
    "timeout": TookTooLong,
    "unavailable": Unavailable,
    "session_lost": SessionLost,
    "wrong_server": WrongServer,
}


@dataclass
class Life:
    """What belongs to one start of a child.

    Attributes:
        frames: the connection.
        in_flight: calls by number: where the answer goes, and the glance of the watchdog at which it is overdue.
        named: whether the child has ended itself and named the call that made it do so.
    """

    frames: Frames
    in_flight: dict[int, tuple[asyncio.Future[tuple[str, Any]], float]]
    named: bool = False


class AsyncProcess(ChildProcess):
    """A child process whose environments answer side by side."""

    module = "verl_hier.environments.async_child"

    def __init__(
        self,
        options: AsyncOptions,
        blocked_s: float,
        setup: Setup,
        start_limit_s: float,
        restarted: Callable[[], None],
    ) -> None:
        """
        Args:
            options: limits of the calls.
            blocked_s: seconds after which a call that blocks the child costs the process.
            setup, start_limit_s, restarted: see `ChildProcess`.
        """
        super().__init__(setup, start_limit_s, restarted)
        self.arguments = (str(options.close_s), str(blocked_s))
        self.stop_limit_s = options.close_s + STOP_LIMIT_S
        self._glances = 0
        self._present: Life | None = None
        self._ending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def call(
        self,
        method: str,
        number: int,
        arguments: tuple[Any, ...],
        limit_s: float,
        life: int | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """Call a method of `async_child.Sessions`, beside all other calls; see `ChildProcess.call`.

        When the caller is cancelled, the child cancels the call and closes the instance. An instance is also gone when
        a call fails or takes too long, unless it was `Unavailable`. `patience_s` does not matter: no call waits for
        another.
        """
        present = self._present
        if present is None or present.frames.lost.done():
            raise Died("it ended between two calls", during_call=False)
        if life is not None and life != self.life:
            raise Died("it was started again", during_call=False)
        self._calls += 1
        call, answer = self._calls, asyncio.get_running_loop().create_future()
        present.in_flight[call] = answer, self._glances + (limit_s + GRACE_S) / GLANCE_S
        try:
            present.frames.send([call, method, number, arguments, limit_s])
            kind, payload = await answer
        except asyncio.CancelledError:
            if method != "close":
                gone = [number, *arguments] if method == "fork" else [number]
                present.frames.send([call, "cancel", number, [gone], limit_s])
            raise
        finally:
            present.in_flight.pop(call, None)
        if kind in ERRORS:
            raise ERRORS[kind](payload)
        return payload

    async def stop(self) -> None:
        """Close the connection, let the environments close, kill what is left."""
        await super().stop()
        if self._ending is not None:
            await self._ending

    async def _start(self) -> None:
        await super()._start()
        assert self._writer is not None
        self._present = present = Life(Frames(self._writer.transport, self._take), {})
        self._ending = asyncio.create_task(self._end(present))
        self._watching = asyncio.create_task(self._watch(present))

    def _died(self) -> bool:
        return self._present is None or self._present.frames.lost.done() or super()._died()

    def _disconnect(self) -> None:
        super()._disconnect()
        self._present = None
        if self._watching is not None:
            self._watching.cancel()

    def _take(self, body: bytes) -> None:
        """Hand an answer to its call."""
        present = self._present
        if present is None:
            return
        number, kind, payload = self._message(body)
        if kind == "blocked":
            # The child ends itself. Only where it knows the culprit are the others known to be innocent.
            kind, present.named = "timeout", number in present.in_flight
        known = present.in_flight.get(number)
        if known is not None and not known[0].done():
            known[0].set_result((kind, payload))

    async def _end(self, present: Life) -> None:
        """Wait for the end of the child; then the calls that are left have failed."""
        why = await present.frames.lost
        async with self._busy:
            if self._present is present:
                status = await self._discard()
                why = why or f"exit status {status}"
        for answer, _ in present.in_flight.values():
            if not answer.done():
                answer.set_exception(Died(why or "it was killed", during_call=not present.named))

    async def _watch(self, present: Life) -> None:
        """Kill a child that lets a time limit pass without a word.

        It counts its glances, and no seconds during which the whole machine stood still.
        """
        while True:
            await asyncio.sleep(GLANCE_S)
            self._glances += 1
            if self._child is not None and any(overdue < self._glances for _, overdue in present.in_flight.values()):
                self._child.kill()
