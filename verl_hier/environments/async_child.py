"""The process in which asynchronous environments live: `python -m verl_hier.environments.async_child <fd> <parent pid>
<seconds for closing> <seconds for which a call may block>`.

Each call is a task of its own, and no call waits for another one. What a call that failed, took too long or was
cancelled leaves of its environment is unknown, so that environment is closed and not used again. See `child` for the
rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.asynchronous import AsyncEnvironment, SessionLost, Unavailable, WrongServer
from verl_hier.environments.child import MASK, end_with, failed, first_message, named, not_started, said
from verl_hier.environments.garbage import collect_rarely
from verl_hier.environments.wire import HEADER, pack, to_step, unpack

logger = logging.getLogger(__name__)

BEAT_S = 0.25
MANY = 16
"""Calls in flight from which on answers are gathered, because each piece of them wakes the rollout worker once."""
GATHER_S = 0.004
Reply = Callable[[int, str, Any], None]


class Sessions:
    """The environments of this process by number, and the calls that the pool may make."""

    def __init__(self, make: Callable[[], AsyncEnvironment], close_s: float) -> None:
        self._make = make
        self._close_s = close_s
        self._open: dict[int, AsyncEnvironment] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, number: int, task: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return said(await self._fresh(number).reset(task, seed), "reset")

    async def step(self, number: int, action: str) -> dict[str, Any]:
        return said(await self._open[number].step(action), "step")

    async def fork(self, number: int, copy: int) -> bool:
        made = await self._open[number].fork()
        if made is None:
            return False
        if made is self._open.get(number):
            raise TypeError("fork() must return another instance, not itself")
        self._open[copy] = made
        return True

    async def replay(
        self, number: int, task: Mapping[str, Any], seed: int, actions: list[str], steps: list[dict[str, Any]]
    ) -> list[dict[str, Any]] | None:
        again = await self._fresh(number).restore(task, seed, actions, [to_step(step) for step in steps])
        return None if again is None else [said(step, "restore") for step in again]

    async def close(self, number: int) -> None:
        environment = self._open.pop(number, None)
        if environment is not None:
            await environment.close()

    def forget(self, number: int, after: asyncio.Task[Any] | None = None) -> None:
        """Close an instance in the background, once a call of it has ended, or as good as."""
        environment = self._open.pop(number, None)
        if environment is not None:
            closing = asyncio.create_task(self._close_quietly(environment, after))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close_all(self) -> None:
        for number in list(self._open):
            self.forget(number)
        if self._closing:
            await asyncio.wait(self._closing)

    def _fresh(self, number: int) -> AsyncEnvironment:
        self.forget(number)
        self._open[number] = environment = self._make()
        return environment

    async def _close_quietly(self, environment: AsyncEnvironment, after: asyncio.Task[Any] | None) -> None:
        if after is not None:
            await asyncio.wait({after}, timeout=self._close_s)
        try:
            await asyncio.wait_for(environment.close(), self._close_s)
        except (Exception, asyncio.CancelledError) as error:
            logger.warning("closing an environment failed: %s", named(error))


@dataclass(frozen=True)
class Call:
    """A call that runs: on which instance, its task, and the timer that ends it."""

    number: int
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle


class Calls:
    """The calls of the pool.

    Attributes:
        running: those that run, by the number that the pool gave them.
    """

    def __init__(self, sessions: Sessions, reply: Reply) -> None:
        self._sessions = sessions
        self._reply = reply
        self.running: dict[int, Call] = {}

    def begin(self, call: int, method: str, number: int, arguments: Sequence[Any], limit_s: float) -> None:
        """Run a method of `Sessions`, and answer when it has ended or its time is over."""
        task = asyncio.create_task(self._run(call, method, number, arguments), name=str(call))
        timer = asyncio.get_running_loop().call_later(limit_s, self._expire, call)
        self.running[call] = Call(number, task, timer)

    def cancel(self, call: int, gone: Sequence[int]) -> None:
        """End a call whose answer nobody waits for, and the instances that may have felt it."""
        running = self.running.pop(call, None)
        if running is not None:
            running.timer.cancel()
            running.task.cancel()
        for number in gone:
            self._sessions.forget(number, after=None if running is None else running.task)

    def cancel_all(self) -> None:
        """End every call, because the pool is gone."""
        for call, running in list(self.running.items()):
            self.cancel(call, [running.number])

    def _expire(self, call: int) -> None:
        # The answer does not wait for code that is slow to stop, or does not.
        running = self.running.get(call)
        if running is not None:
            self._reply(call, "timeout", "its environment was closed")
            self.cancel(call, [running.number])

    async def _run(self, call: int, method: str, number: int, arguments: Sequence[Any]) -> None:
        try:
            kind, payload = "done", await getattr(self._sessions, method)(number, *arguments)
        except asyncio.CancelledError as error:
            if call not in self.running:
                raise
            kind, payload = failed(error)  # by the environment's own doing
        except (Exception, SystemExit) as error:
            kind, payload = self._failed(error, method)
        running = self.running.pop(call, None)
        if running is None:
            return  # answered or cancelled while it ended
        running.timer.cancel()
        if kind not in ("done", "unavailable"):
            self._sessions.forget(number)
        self._reply(call, kind, payload)

    def _failed(self, error: BaseException, method: str) -> tuple[str, str]:
        if method != "close":
            if isinstance(error, Unavailable):
                return "unavailable", named(error).partition(": ")[2]
            if isinstance(error, SessionLost):
                return "session_lost", named(error).partition(": ")[2]
            if isinstance(error, WrongServer):
                return "wrong_server", named(error).partition(": ")[2]
        return failed(error)


def watch(loop: asyncio.AbstractEventLoop, blocked_s: float, report: Callable[[int], None]) -> None:
    """End this process when the event loop stands still, after a report of the call that blocks it; 0 if it is none.

    Counts its own glances, and no seconds during which the whole process stood still.
    """
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        loop.call_later(BEAT_S, beat)

    def look() -> None:
        seen, still = 0, 0.0
        while not loop.is_closed():
            time.sleep(BEAT_S)
            still = 0.0 if beats != seen else still + BEAT_S
            seen = beats
            if still > blocked_s:
                task = asyncio.current_task(loop)
                name = task.get_name() if task is not None else ""
                report(int(name) if name.isdecimal() else 0)
                os._exit(1)

    beat()
    threading.Thread(target=look, daemon=True).start()


class Answers:
    """The way back to the pool.

    Attributes:
        in_flight: the calls that run. Where they are many, answers are gathered for some milliseconds.
    """

    def __init__(self, writer: asyncio.StreamWriter, descriptor: int) -> None:
        """
        Args:
            writer, descriptor: of the connection to the pool.
        """
        self.in_flight: Sized = ()
        self._writer = writer
        self._descriptor = descriptor
        self._me = os.getpid()
        self._gathered: list[bytes] = []

    def reply(self, number: int, kind: str, payload: Any) -> None:
        """Answer the call of a number."""
        if os.getpid() != self._me:
            # The world has forked, and this is the copy: what it says would be taken for an answer.
            os._exit(1)
        self._gathered.append(pack([number, self._me, kind, MASK(payload)]))
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_later(GATHER_S if len(self.in_flight) >= MANY else 0.0, self.flush)

    def flush(self) -> None:
        """Send what is gathered."""
        self._writer.write(b"".join(self._gathered))
        self._gathered.clear()

    def blocked(self, number: int) -> None:
        """Name the call that blocks this process; from the watchdog's thread, while the event loop stands still."""
        if self._writer.transport.get_write_buffer_size() == 0:
            why = "it blocked its process, which was ended; what blocks belongs into asyncio.to_thread"
            os.write(self._descriptor, b"".join([*self._gathered, pack([number, self._me, "blocked", why])]))


async def serve(connection: socket.socket, close_s: float, blocked_s: float) -> None:
    """Answer calls side by side until the pool closes the connection."""
    descriptor = connection.fileno()
    path, load = first_message(connection)
    reader, writer = await asyncio.open_connection(sock=connection)
    answers = Answers(writer, descriptor)
    async with contextlib.AsyncExitStack() as stack:
        try:
            service, options = load()
            make = await stack.enter_async_context(service(options))
        except Exception as error:
            answers.reply(0, *not_started(error, f"the service {path!r} does not start"))
            answers.flush()
            writer.close()
            await writer.wait_closed()
            return
        sessions = Sessions(make, close_s)
        calls = Calls(sessions, answers.reply)
        answers.in_flight = calls.running
        collect_rarely()
        answers.reply(0, "ready", None)
        watch(asyncio.get_running_loop(), blocked_s, answers.blocked)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                call, method, number, arguments, limit_s = unpack(await reader.readexactly(size))
                if method == "cancel":
                    calls.cancel(call, *arguments)
                else:
                    calls.begin(call, method, number, arguments, limit_s)
        calls.cancel_all()
        await sessions.close_all()


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    end_with(parent)
    MASK.cover_output()
    with socket.socket(fileno=descriptor) as connection:
        asyncio.run(serve(connection, close_s=float(sys.argv[3]), blocked_s=float(sys.argv[4])))


if __name__ == "__main__":
    main()
