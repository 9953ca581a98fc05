"""The processes of agents: their start, their output, and their end, whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import IO, Any

from verl_hier.environments.mask import NAMES
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.gateway.launch import HEADER
from verl_hier_plugins.environments.gateway.messages import without_keys
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.gateway.samples import sample_of

LAUNCH = str(Path(__file__).with_name("launch.py"))
LOG_CHARACTERS = 400
"""Of the end of an agent's log, in sentences about its death."""
CHUNK = 65536
Begun = tuple[int, Awaitable[int]]
"""Process id and exit status of a run that has begun."""
LEFT_OPEN_S = 1.0
"""Seconds for which the output of an agent is read after its end; a program that it left behind may hold it open."""


def require_agent(options: GatewayOptions) -> None:
    """Refuse an agent that cannot be started, as far as that shows before it is.

    Raises:
        RecipeError: naming the line.
    """
    folder = Path(options.folder).expanduser()
    if not folder.is_dir():
        raise RecipeError(f"hier.environment.folder: there is no folder {folder}.")
    if options.python and shutil.which(str(Path(options.python).expanduser())) is None:
        raise RecipeError(f"hier.environment.python: {options.python} is no program.")
    place = options.agent.rpartition(":")[0]
    if place.endswith(".py") and not (folder / place).is_file():
        raise RecipeError(f"hier.environment.agent: there is no file {folder / place}.")
    if options.command:
        program = shlex.split(options.command)[0]
        # One with a folder in it is looked for where the agent runs.
        if shutil.which(str(folder / program) if "/" in program else program) is None:
            raise RecipeError(f"hier.environment.command: {program} is no program.")


class AgentProcess:
    """One run of an agent, which leads a process group of its own.

    Attributes:
        ended: set when it has ended; `status` and `result` are then known.
        status: its exit status, None while it runs.
        result: what it wrote to its standard output, cut to the limit.
    """

    def __init__(self, pid: int, out: IO[bytes], log: IO[bytes], exit_status: Awaitable[int], most: int) -> None:
        self.ended = asyncio.Event()
        self.status: int | None = None
        self.result = ""
        self._pid = pid
        self._most = most
        self._out = self._log = b""
        self._watching = asyncio.create_task(self._watch(out, log, exit_status))

    @property
    def log(self) -> str:
        """The last line that it wrote to its log."""
        lines = self._log.decode("utf-8", "replace").strip().splitlines()
        return without_keys(" ".join(lines[-1:]))[-LOG_CHARACTERS:] or "without a word in its log"

    async def stop(self) -> None:
        """End it and what it has started in its process group."""
        if not self.ended.is_set():
            self._kill()
        await self._watching

    async def _watch(self, out: IO[bytes], log: IO[bytes], exit_status: Awaitable[int]) -> None:
        reading = asyncio.gather(self._read(out, self._keep_result), self._read(log, self._keep_log))
        try:
            self.status = await exit_status
            self._kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reading, LEFT_OPEN_S)
            self.result = without_keys(self._out.decode("utf-8", "replace")[: self._most].strip())
        finally:
            reading.cancel()
            self.ended.set()

    async def _read(self, file: IO[bytes], keep: Any) -> None:
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
        try:
            while part := await stream.read(CHUNK):
                keep(part)
        finally:
            transport.close()

    def _keep_result(self, part: bytes) -> None:
        self._out = (self._out + part)[: 4 * self._most]

    def _keep_log(self, part: bytes) -> None:
        self._log = (self._log + part)[-4 * LOG_CHARACTERS :]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)


class Agents:
    """Starts the agent of a recipe, once for each episode.

    With `preload`, one process imports the agent's function and copies itself for each episode, because the imports of
    a framework take seconds.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._server: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._asking = asyncio.Lock()
        self._began: asyncio.Queue[Begun] = asyncio.Queue()
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._server_log = b""

    async def start(self, task: Mapping[str, Any], variables: Mapping[str, str]) -> AgentProcess:
        """Start the agent with a task.

        Args:
            task: what it is given.
            variables: environment variables that it gets beside those of this process.

        Raises:
            RuntimeError: when the process that has imported the agent cannot be had.
        """
        reads_out, out = os.pipe()
        reads_log, log = os.pipe()
        files = os.fdopen(reads_out, "rb", 0), os.fdopen(reads_log, "rb", 0)
        try:
            if self._options.preload and not self._options.command:
                pid, ending = await self._copied(task, variables, out, log)
            else:
                pid, ending = self._fresh(task, variables, out, log)
        except BaseException:
            for file in files:
                file.close()
            raise
        finally:
            os.close(out)
            os.close(log)
        return AgentProcess(pid, *files, ending, self._options.result_characters)

    async def close(self) -> None:
        """End the process that has imported the agent; its copies end with it."""
        server, self._server = self._server, None
        if server is not None and self._requests is not None:
            server.kill()
            self._requests.close()
            await asyncio.to_thread(server.wait)
        if self._listening is not None:
            await self._listening

    def _fresh(self, task: Mapping[str, Any], variables: Mapping[str, str], out: int, log: int) -> Begun:
        kind, words = "function", [self._options.agent or sample_of(self._options).agent]
        if self._options.command:
            kind, words = "command", shlex.split(self._options.command)
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(task).encode() + b"\n")
            given.seek(0)
            child = subprocess.Popen(
                self._launch(kind, *words),
                cwd=self._folder,
                env={**self._environ(), **variables},
                stdin=given,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        return child.pid, _exit_of(child)

    async def _copied(self, task: Mapping[str, Any], variables: Mapping[str, str], out: int, log: int) -> Begun:
        body = json.dumps({"task": task, "variables": variables}).encode()
        # A caller that is cancelled must not leave a report behind that the next one would take for its own.
        exchange = asyncio.ensure_future(self._exchange(body, os.dup(out), os.dup(log)))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_kill_begun)
            raise

    async def _exchange(self, body: bytes, out: int, log: int) -> Begun:
        """Ask for a copy and wait until it has begun."""
        try:
            async with self._asking:
                if self._server is None or self._listening is None or self._listening.done():
                    await self._serve()
                with contextlib.suppress(OSError):  # it has ended, which shows below
                    await asyncio.to_thread(self._send, body, (out, log))
                began = asyncio.ensure_future(self._began.get())
                assert self._listening is not None
                await asyncio.wait({began, self._listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            os.close(out)
            os.close(log)
        if began.done():
            return began.result()
        began.cancel()
        last = self._server_log.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise RuntimeError(f"the agent cannot be imported: {''.join(last)[-LOG_CHARACTERS:]}")

    def _send(self, body: bytes, descriptors: tuple[int, int]) -> None:
        assert self._requests is not None
        socket.send_fds(self._requests, [HEADER.pack(len(body))], descriptors)
        self._requests.sendall(body)

    async def _serve(self) -> None:
        """Start the process that imports the agent."""
        await self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                self._launch("server", self._options.agent or sample_of(self._options).agent, str(theirs.fileno())),
                cwd=self._folder,
                env={**self._environ(), "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._requests, self._server_log = ours, b""
        self._listening = asyncio.create_task(self._listen(self._server))

    async def _listen(self, server: subprocess.Popen[bytes]) -> None:
        loop, reports, log = asyncio.get_running_loop(), asyncio.StreamReader(), asyncio.StreamReader()
        transports = []
        for stream, file in ((reports, server.stdout), (log, server.stderr)):
            protocol = asyncio.StreamReaderProtocol(stream)
            transports.append((await loop.connect_read_pipe(lambda protocol=protocol: protocol, file))[0])  # type: ignore[misc]
        following = asyncio.create_task(self._follow(log))
        try:
            while line := await reports.readline():
                said = json.loads(line)
                if "began" in said:
                    self._ends[said["began"]] = end = loop.create_future()
                    self._began.put_nowait((said["began"], end))
                else:
                    self._ends.pop(said["ended"]).set_result(said["status"])
            # The copies end with their source.
            for end in self._ends.values():
                end.set_result(-signal.SIGKILL)
            self._ends.clear()
            await asyncio.wait({following}, timeout=LEFT_OPEN_S)
        finally:
            following.cancel()
            for transport in transports:
                transport.close()

    async def _follow(self, log: asyncio.StreamReader) -> None:
        while part := await log.read(CHUNK):
            self._server_log = (self._server_log + part)[-4 * LOG_CHARACTERS :]

    def _launch(self, kind: str, *words: str) -> list[str]:
        python = self._options.python
        program = str(Path(python).expanduser()) if python else sys.executable
        return [program, LAUNCH, str(os.getpid()), kind, *words]

    @property
    def _folder(self) -> Path | None:
        return Path(self._options.folder).expanduser() if self._options.folder else None

    def _environ(self) -> dict[str, str]:
        left_out = (NAMES, "PYTHONPATH") if self._options.python else (NAMES,)
        return {name: value for name, value in os.environ.items() if name not in left_out}


async def _exit_of(child: subprocess.Popen[bytes]) -> int:
    """The exit status of a child, once it has ended."""
    descriptor = os.pidfd_open(child.pid)
    exited, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return child.wait()


def _kill_begun(exchange: asyncio.Future[Begun]) -> None:
    """End a run that nobody waits for any more."""
    if not exchange.cancelled() and exchange.exception() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(exchange.result()[0], signal.SIGKILL)
