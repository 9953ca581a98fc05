"""Asynchronous environments that live in the rollout worker itself: those that need what only it has.

They share its event loop. So nobody can end one that blocks, and what they know is not masked; everything else is as in
a process of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from verl_hier.environments.async_child import Calls, Sessions
from verl_hier.environments.async_process import ERRORS
from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.child_process import ChildProcess, Died
from verl_hier.environments.surroundings import ProcessOptions


class InWorker(ChildProcess):
    """The place of a `ChildProcess`, without a process."""

    module = ""

    def __init__(self, make: Callable[[], AsyncEnvironment], close_s: float, restarted: Callable[[], None]) -> None:
        """
        Args:
            make: makes an environment.
            close_s: seconds that closing one may take.
            restarted: called when `kill` has ended all environments and the next one is made.
        """
        super().__init__(("", b"", (), ProcessOptions()), 0.0, restarted)
        self._make = make
        self._close_s = close_s
        self._answers: dict[int, asyncio.Future[tuple[str, Any]]] = {}
        self._sessions: Sessions | None = None
        self._running: Calls | None = None

    async def call(
        self,
        method: str,
        number: int,
        arguments: tuple[Any, ...],
        limit_s: float,
        life: int | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """See `ChildProcess.call`; `patience_s` does not matter, because no call waits for another."""
        running = self._running
        if running is None or life not in (None, self.life):
            raise Died("it was started again", during_call=False)
        self._calls += 1
        call = self._calls
        self._answers[call] = answer = asyncio.get_running_loop().create_future()
        try:
            running.begin(call, method, number, arguments, limit_s)
            kind, payload = await answer
        except asyncio.CancelledError:
            gone: Sequence[int] = [number, *arguments] if method == "fork" else [number]
            running.cancel(call, gone if method != "close" else ())
            raise
        finally:
            self._answers.pop(call, None)
        if kind in ERRORS:
            raise ERRORS[kind](payload)
        return payload

    async def kill(self) -> None:
        """Forget every environment; the next call makes others."""
        async with self._busy:
            await self._end()

    async def stop(self) -> None:
        """Close every environment."""
        self._stopped = True
        async with self._busy:
            await self._end()

    def _died(self) -> bool:
        return self._running is None

    async def _start(self) -> None:
        if self._stopped:
            raise RuntimeError("the environment pool is closed")
        self._sessions = Sessions(self._make, self._close_s)
        self._running = Calls(self._sessions, self._reply)
        self.life = self._lives
        self._lives += 1
        if self.life:
            self._restarted()

    async def _end(self) -> None:
        running, sessions = self._running, self._sessions
        self._running, self._sessions, self.life = None, None, -1
        if running is not None and sessions is not None:
            running.cancel_all()
            await sessions.close_all()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Died("it was ended", during_call=True))

    def _reply(self, call: int, kind: str, payload: Any) -> None:
        answer = self._answers.get(call)
        if answer is not None and not answer.done():
            answer.set_result((kind, payload))
