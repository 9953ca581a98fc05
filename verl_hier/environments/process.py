"""The pool's end of a process with synchronous environments: one call at a time, with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from verl_hier.environments.child_process import (
    ANOTHER,
    ChildProcess,
    Died,
    Garbled,
    Raised,
    Refused,
    Setup,
    TookTooLong,
)
from verl_hier.environments.wire import pack

_GLANCE_S = 0.02


class Stuck(Exception):
    """Another episode's call has run for so long that it is probably hanging; this one has not begun."""


class Process(ChildProcess):
    """A child process that answers one call after the other; a call that takes too long costs the process."""

    module = "verl_hier.environments.child"

    def __init__(self, setup: Setup, start_limit_s: float, restarted: Callable[[], None]) -> None:
        super().__init__(setup, start_limit_s, restarted)
        self._began: float | None = None
        self._started = False

    @property
    def busy_s(self) -> float:
        """Seconds for which the present call has run; 0 without one."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def call(
        self,
        method: str,
        number: int,
        arguments: tuple[Any, ...],
        limit_s: float,
        life: int | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """Call a method of `child.Instances`; waits for its turn, then at most `limit_s`. See `ChildProcess.call`."""
        # A cancelled caller must not leave a half-read answer behind, so the exchange itself is completed.
        exchange = asyncio.ensure_future(self._in_turn((method, number, arguments), limit_s, life, patience_s))
        exchange.add_done_callback(_retrieve)
        kind, payload = await asyncio.shield(exchange)
        if kind == "raised":
            raise Raised(payload)
        if kind == "refused":
            raise Refused(payload)
        return payload

    async def stop(self) -> None:
        """Close the connection, wait a moment, kill; a call in progress is not waited for."""
        if self._busy.locked() and self._child is not None:
            self._child.kill()
        await super().stop()

    async def _in_turn(self, request: Any, limit_s: float, life: int | None, patience_s: float | None) -> Any:
        await self._acquire(patience_s)
        try:
            if self._died():
                await self._discard()
                raise Died("it ended between two calls", during_call=False)
            if life is not None and life != self.life:
                raise Died("it was started again", during_call=False)
            try:
                return await self._exchange(request, limit_s)
            except TookTooLong:
                await self._discard()
                raise
        finally:
            self._busy.release()

    async def _acquire(self, patience_s: float | None) -> None:
        """Wait for the turn of a call.

        Raises:
            Stuck: when the call in progress has run longer than `patience_s`.
        """
        if patience_s is None or not self._busy.locked():
            await self._busy.acquire()
            return
        loop, waiter, gave_up = asyncio.get_running_loop(), asyncio.current_task(), False
        assert waiter is not None
        watch: asyncio.TimerHandle

        def look_later() -> asyncio.TimerHandle:
            # A timer instead of a task of its own: hundreds of episodes wait here at once.
            return loop.call_later(max(patience_s - self.busy_s, _GLANCE_S), look)

        def look() -> None:
            nonlocal gave_up, watch
            gave_up = self.busy_s >= patience_s
            if gave_up:
                waiter.cancel()
            else:
                watch = look_later()

        watch = look_later()
        try:
            await self._busy.acquire()
        except asyncio.CancelledError:
            if gave_up:
                raise Stuck from None
            raise
        finally:
            watch.cancel()

    async def _exchange(self, request: Any, limit_s: float) -> tuple[str, Any]:
        """Send and wait for the reply that follows `started`."""
        assert self._reader is not None and self._writer is not None
        self._started, self._began = False, time.monotonic()
        self._calls += 1
        # The end of the time limit wakes up whoever reads, who then discards the connection: no task is needed for it.
        late = TookTooLong("its process was killed")
        limit = asyncio.get_running_loop().call_later(limit_s, self._reader.set_exception, late)
        try:
            self._writer.write(pack([self._calls, *request]))
            reply = await self._reply(self._reader)
            if self._reader.exception() is not None:
                raise late  # It came in the moment in which the limit was reached; the connection is spoilt.
            return reply
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._discard()
            raise Died(f"exit status {status}", during_call=self._started) from None
        except Garbled as error:
            await self._discard()
            raise Died(f"it {error}", during_call=True) from None
        finally:
            limit.cancel()
            self._began = None

    async def _reply(self, reader: asyncio.StreamReader) -> tuple[str, Any]:
        while True:
            number, kind, payload = await self._receive(reader)
            if number != self._calls:
                raise Garbled(ANOTHER)
            if kind != "started":
                return kind, payload
            self._started = True


def _retrieve(exchange: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an exchange whose caller was cancelled, so that asyncio does not log it."""
    if not exchange.cancelled():
        exchange.exception()
