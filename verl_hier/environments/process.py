"""The pool's end of one environment process: start, call with a time limit, kill, restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from verl_hier.environments.wire import HEADER, LARGEST_MESSAGE, pack, unpack
from verl_hier.errors import RecipeError, RolloutError

logger = logging.getLogger(__name__)

STOP_LIMIT_S = 2.0
_GLANCE_S = 0.02


class TookTooLong(Exception):
    """The call exceeded its time limit; the process was killed."""


class Raised(Exception):
    """The environment raised an exception; the process goes on."""


class Refused(Exception):
    """The environment refused the recipe; the process goes on."""


class Garbled(Exception):
    """What a process sent is no reply to the present call."""


class Stuck(Exception):
    """Another episode's call has run for so long that it is probably hanging; this one has not begun."""


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
        """
        Args:
            setup: name of the factory, and the pickle of the factory and its options.
            start_limit_s: time limit of a start in seconds.
            restarted: called at every start but the first.
        """
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
        self._began: float | None = None
        self._calls = 0
        self._started = False
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Process id of the current child."""
        return self._child.pid if self._child is not None else None

    @property
    def busy_s(self) -> float:
        """Seconds for which the present call has run; 0 without one."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def alive(self) -> int:
        """The current `life`; starts a child if there is none."""
        if self._died():
            async with self._busy:
                if self._died():
                    await self._start()
        return self.life

    async def call(
        self,
        method: str,
        number: int,
        arguments: tuple[Any, ...],
        limit_s: float,
        life: int | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """Call a method in the child; waits for its turn, then at most `limit_s`.

        Args:
            method: a method of `child.Instances`.
            number: the instance.
            arguments: the other arguments of the method.
            limit_s: time limit of the call itself in seconds.
            life: the `life` in which the instance was made; raises `Died` when another one has begun.
            patience_s: raises `Stuck` instead of waiting for a call that has run longer than this.

        Returns:
            What the method returned, as JSON says it.
        """
        # A cancelled caller must not leave a half-read answer behind, so the exchange itself is completed.
        exchange = asyncio.ensure_future(self._in_turn((method, number, arguments), limit_s, life, patience_s))
        exchange.add_done_callback(_retrieve)
        kind, payload = await asyncio.shield(exchange)
        if kind == "raised":
            raise Raised(payload)
        if kind == "refused":
            raise Refused(payload)
        return payload

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
        turn = asyncio.ensure_future(self._busy.acquire())
        while not turn.done():
            await asyncio.wait({turn}, timeout=max(patience_s - self.busy_s, _GLANCE_S))
            if not turn.done() and self.busy_s >= patience_s:
                turn.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await turn
                    self._busy.release()
                raise Stuck

    async def drop(self, number: int, life: int | None = None) -> None:
        """Free an instance of a `life`, whatever the state of the child."""
        try:
            await self.call("close", number, (), STOP_LIMIT_S, life)
        except Died:
            pass  # and the instance with it
        except (TookTooLong, Raised, Refused) as error:
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
        self._started, self._began = False, time.monotonic()
        self._calls += 1
        try:
            self._writer.write(pack([self._calls, *request]))
            return await asyncio.wait_for(self._reply(), limit_s)
        except asyncio.TimeoutError:
            raise TookTooLong from None
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._discard()
            raise Died(f"exit status {status}", during_call=self._started) from None
        except Garbled as error:
            await self._discard()
            raise Died(f"it {error}", during_call=True) from None
        finally:
            self._began = None

    async def _reply(self) -> tuple[str, Any]:
        while True:
            kind, payload = await self._receive()
            if kind != "started":
                return kind, payload
            self._started = True

    async def _receive(self) -> tuple[str, Any]:
        assert self._reader is not None
        (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if size > LARGEST_MESSAGE:
            raise Garbled(f"answered with {size} bytes")
        try:
            number, pid, kind, payload = unpack(await self._reader.readexactly(size))
        except (ValueError, TypeError) as error:
            raise Garbled("answered with what is no message") from error
        if number != self._calls or pid != self.pid or not isinstance(kind, str):
            raise Garbled("answered for another call or process: its world forks, or writes to our connection")
        return kind, payload

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
        setup = pickle.dumps(self._setup)
        self._writer.write(HEADER.pack(len(setup)) + setup)
        self._calls = 0
        try:
            kind, payload = await asyncio.wait_for(self._receive(), self._start_limit_s)
        except (Garbled, asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
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
