"""The pool's end of one environment process: start, call with a time limit, kill, restart."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from verl_hier.environments.wire import HEADER, pack, unpack
from verl_hier.errors import RecipeError, RolloutError

logger = logging.getLogger(__name__)

STOP_LIMIT_S = 2.0


class TookTooLong(Exception):
    """The call exceeded its time limit; the process was killed."""


class Raised(Exception):
    """The environment raised an exception; the process goes on."""


class Refused(Exception):
    """The environment refused the recipe; the process goes on."""


class Died(Exception):
    """The process has ended.

    Attributes:
        during_call: whether it had begun the call that reports this.
    """

    def __init__(self, message: str, during_call: bool) -> None:
        super().__init__(message)
        self.during_call = during_call


class Process:
    """A child process that is started on first use and again after it has died.

    Attributes:
        load: number of open episodes in it.
        life: number of the current start, from 0; -1 while there is no child.
    """

    def __init__(self, setup: tuple[str, bytes], start_limit_s: float, restarted: Callable[[], None]) -> None:
        self.load = 0
        self.life = -1
        self._lives = 0
        self._setup = setup
        self._start_limit_s = start_limit_s
        self._restarted = restarted
        self._busy = asyncio.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._started = False
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Process id of the current child."""
        return self._child.pid if self._child is not None else None

    async def alive(self) -> int:
        """The current `life`; starts a child if there is none."""
        if self._died():
            async with self._busy:
                if self._died():
                    await self._start()
        return self.life

    async def call(
        self, method: str, number: int, arguments: tuple[Any, ...], limit_s: float, life: int | None = None
    ) -> Any:
        """Call a method in the child; waits for its turn, then at most `limit_s`.

        Args:
            method: a method of `child.Instances`.
            number: the instance.
            arguments: the other arguments of the method.
            limit_s: time limit of the call itself in seconds.
            life: the `life` in which the instance was made; raises `Died` when another one has begun.
        """
        # A cancelled caller must not leave a half-read answer behind, so the exchange itself is completed.
        exchange = asyncio.ensure_future(self._in_turn((method, number, arguments), limit_s, life))
        exchange.add_done_callback(_retrieve)
        kind, payload = await asyncio.shield(exchange)
        if kind == "raised":
            raise Raised(payload)
        if kind == "refused":
            raise Refused(payload)
        return payload

    async def _in_turn(self, request: Any, limit_s: float, life: int | None) -> tuple[str, Any]:
        async with self._busy:
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

    async def drop(self, number: int) -> None:
        """Free an instance, whatever the state of the child."""
        try:
            await self.call("close", number, (), STOP_LIMIT_S)
        except (TookTooLong, Raised, Refused, Died) as error:
            logger.warning("freeing an environment failed: %s", error)

    async def kill(self) -> None:
        """Kill the child; the next call starts another one."""
        async with self._busy:
            await self._discard()

    async def stop(self) -> None:
        """Close the connection, wait a moment, kill."""
        self._stopped = True
        if self._busy.locked() and self._child is not None:
            # A call is in progress whose answer is no longer needed.
            self._child.kill()
        async with self._busy:
            child = self._child
            self._disconnect()
            if child is not None:
                try:
                    await asyncio.to_thread(child.wait, STOP_LIMIT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    await asyncio.to_thread(child.wait)
            self._child = None

    def _died(self) -> bool:
        if self._child is None or self._reader is None:
            return True
        return self._reader.at_eof() or self._child.poll() is not None

    async def _exchange(self, request: Any, limit_s: float) -> tuple[str, Any]:
        """Send and wait for the reply that follows `started`."""
        assert self._writer is not None
        self._started = False
        try:
            self._writer.write(pack(request))
            return await asyncio.wait_for(self._reply(), limit_s)
        except asyncio.TimeoutError:
            raise TookTooLong from None
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._discard()
            raise Died(f"exit status {status}", during_call=self._started) from None

    async def _reply(self) -> tuple[str, Any]:
        while True:
            kind, payload = await self._receive()
            if kind != "started":
                return kind, payload
            self._started = True

    async def _receive(self) -> tuple[str, Any]:
        assert self._reader is not None
        (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        message: tuple[str, Any] = unpack(await self._reader.readexactly(size))
        return message

    async def _start(self) -> None:
        if self._stopped:
            raise RuntimeError("the environment pool is closed")
        if self._child is not None:
            await self._discard()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "verl_hier.environments.child", str(theirs.fileno()), str(os.getpid())]
        # Popen can take milliseconds in a large process, so it stays off the event loop.
        self._child = await asyncio.to_thread(
            subprocess.Popen,
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(pack(self._setup))
        try:
            kind, payload = await asyncio.wait_for(self._receive(), self._start_limit_s)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            status = await self._discard()
            raise RolloutError(f"an environment process did not start ({type(error).__name__}, {status})") from error
        if kind != "ready":
            await self._discard()
            if kind == "refused":
                raise RecipeError(payload)
            raise RolloutError(f"an environment process did not start: {payload}")
        self.life = self._lives
        self._lives += 1
        if self.life:
            self._restarted()

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        self.life = -1

    async def _discard(self) -> int | None:
        """Kill the child if it is still running; returns its exit status."""
        self._disconnect()
        child, self._child = self._child, None
        if child is None:
            return None
        child.kill()
        return await asyncio.to_thread(child.wait)


def _retrieve(exchange: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an exchange whose caller was cancelled, so that asyncio does not log it."""
    if not exchange.cancelled():
        exchange.exception()
