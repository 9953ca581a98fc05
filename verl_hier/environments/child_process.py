"""A child process of the pool and the socket to it: start, receive, kill, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.environments.wire import HEADER, LARGEST_MESSAGE, unpack
from verl_hier.errors import RecipeError, RolloutError

logger = logging.getLogger(__name__)

Setup = tuple[str, bytes, Collection[str], ProcessOptions]
"""Name of the factory, the pickle of it and its options, the packages that have them, and what a process is given."""

STOP_LIMIT_S = 2.0
ANOTHER = "answered for another call or process: its world forks, or writes to our connection"


class TookTooLong(Exception):
    """The call exceeded its time limit; the text says what was ended for it."""


class Raised(Exception):
    """The environment raised an exception; the process goes on."""


class Refused(Exception):
    """The environment refused the recipe; the process goes on."""


class Garbled(Exception):
    """What a process sent is no reply to the present call."""


class Died(Exception):
    """The process has ended.

    Attributes:
        during_call: whether it had begun the call that reports this.
    """

    def __init__(self, message: str, during_call: bool) -> None:
        super().__init__(message)
        self.during_call = during_call


class ChildProcess(ABC):
    """A child process that is started on first use and again after it has died.

    Attributes:
        load: number of open episodes in it.
        life: number of the current start, from 0; -1 while there is no child.
        arguments: of the module, behind a descriptor and our process id.
        stop_limit_s: seconds that it may take to end by itself.
    """

    module: ClassVar[str]
    """What runs in the child."""

    def __init__(self, setup: Setup, start_limit_s: float, restarted: Callable[[], None]) -> None:
        """
        Args:
            setup: what the child makes, and where.
            start_limit_s: time limit of a start in seconds.
            restarted: called at every start but the first.
        """
        self.load = 0
        self.life = -1
        self.arguments: tuple[str, ...] = ()
        self.stop_limit_s = STOP_LIMIT_S
        self._lives = 0
        *self._setup, self._packages, self._options = setup
        self._start_limit_s = start_limit_s
        self._restarted = restarted
        self._busy = asyncio.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._calls = 0
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Process id of the current child."""
        return self._child.pid if self._child is not None else None

    @property
    def busy_s(self) -> float:
        """Seconds for which a call has run that others wait for; 0 without one."""
        return 0.0

    @abstractmethod
    async def call(
        self,
        method: str,
        number: int,
        arguments: tuple[Any, ...],
        limit_s: float,
        life: int | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """Call a method in the child.

        Args:
            method: name of the method.
            number: the instance.
            arguments: the other arguments of the method.
            limit_s: time limit of the call itself in seconds.
            life: the `life` in which the instance was made; raises `Died` when another one has begun.
            patience_s: raises `Stuck` instead of waiting for a call that has run longer than this.

        Returns:
            What the method returned, as JSON says it.
        """

    async def drop(self, number: int, life: int | None = None) -> None:
        """Free an instance of a `life`, whatever the state of the child."""
        try:
            await self.call("close", number, (), STOP_LIMIT_S, life)
        except Died:
            pass  # and the instance with it
        except (TookTooLong, Raised, Refused) as error:
            logger.warning("freeing an environment failed: %s", error)

    async def alive(self) -> int:
        """The current `life`; starts a child if there is none."""
        if self._died():
            async with self._busy:
                if self._died():
                    await self._start()
        return self.life

    async def kill(self) -> None:
        """Kill the child; the next call starts another one."""
        async with self._busy:
            await self._discard()

    async def stop(self) -> None:
        """Close the connection, wait a moment, kill."""
        self._stopped = True
        async with self._busy:
            child = self._child
            self._disconnect()
            if child is not None:
                try:
                    await asyncio.to_thread(child.wait, self.stop_limit_s)
                except subprocess.TimeoutExpired:
                    child.kill()
                    await asyncio.to_thread(child.wait)
            self._child = None

    def _died(self) -> bool:
        if self._child is None or self._reader is None:
            return True
        return self._reader.at_eof() or self._child.poll() is not None

    async def _receive(self, reader: asyncio.StreamReader) -> tuple[int, str, Any]:
        """Number of the call, kind and payload of the next message."""
        (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        if size > LARGEST_MESSAGE:
            raise Garbled(f"answered with {size} bytes")
        return self._message(await reader.readexactly(size))

    def _message(self, body: bytes) -> tuple[int, str, Any]:
        """Number of the call, kind and payload of a message."""
        try:
            number, pid, kind, payload = unpack(body)
        except (ValueError, TypeError) as error:
            raise Garbled("answered with what is no message") from error
        if pid != self.pid or not isinstance(number, int) or not isinstance(kind, str):
            raise Garbled(ANOTHER)
        return number, kind, payload

    async def _start(self) -> None:
        if self._stopped:
            raise RuntimeError("the environment pool is closed")
        if self._child is not None:
            await self._discard()
        given = self._options
        environ = given.environ()
        ours, theirs = socket.socketpair()
        arguments = (str(theirs.fileno()), str(os.getpid()), *self.arguments)
        try:
            # Popen can take milliseconds in a large process, so it stays off the event loop.
            self._child = await asyncio.to_thread(
                subprocess.Popen,
                given.command(self.module, arguments, self._packages),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**environ, **given.search_path()},
            )
        except OSError as error:
            ours.close()
            raise RecipeError(f"hier.rollout.process.python: {given.python!r} cannot be started: {error}.") from error
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        setup = pickle.dumps(tuple(self._setup))
        self._writer.write(HEADER.pack(len(setup)) + setup)
        self._calls = 0
        try:
            _, kind, payload = await asyncio.wait_for(self._receive(self._reader), self._start_limit_s)
        except (Garbled, asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            status = await self._discard()
            raise RolloutError(f"an environment process did not start ({type(error).__name__}, {status})") from error
        if kind != "ready":
            await self._discard()
            why, lacking = payload
            if lacking and given.python:
                sentence = f"{given.python} lacks what the environment needs ({lacking}); install it there."
                raise RecipeError(f"hier.rollout.process.python: {sentence}")
            if kind == "refused":
                raise RecipeError(why)
            raise RolloutError(f"an environment process did not start: {why}")
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
