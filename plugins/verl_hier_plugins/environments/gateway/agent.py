"""The process of an agent: its start, its output, and its end, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hier.environments.mask import NAMES
from verl_hier_plugins.environments.gateway.options import GatewayOptions

LAUNCH = str(Path(__file__).with_name("launch.py"))
SAMPLE = "verl_hier_plugins.environments.gateway.sample:play"
LOG_CHARACTERS = 400
"""Of the end of an agent's log, in sentences about its death."""
CHUNK = 65536


class AgentProcess:
    """One agent, from its start to its end.

    Attributes:
        ended: set when it has ended; `status` and `result` are then known.
        result: what it wrote to its standard output, cut to the limit.
    """

    def __init__(self, process: asyncio.subprocess.Process, most: int) -> None:
        self.ended = asyncio.Event()
        self.result = ""
        self._process = process
        self._log = b""
        self._watching = asyncio.create_task(self._watch(most))

    @classmethod
    async def start(cls, options: GatewayOptions, task: Mapping[str, Any], surroundings: Mapping[str, str]) -> Any:
        """Start the agent of a recipe with a task on its standard input.

        Args:
            options: name it.
            task: what it is given.
            surroundings: environment variables that it gets beside those of this process.
        """
        given = {**os.environ, **surroundings}
        given.pop(NAMES, None)
        kind, words = "function", [options.agent or SAMPLE]
        if options.command:
            kind, words = "command", shlex.split(options.command)
        if options.python:
            given.pop("PYTHONPATH", None)
        process = await asyncio.create_subprocess_exec(
            str(Path(options.python).expanduser()) if options.python else sys.executable,
            *(LAUNCH, str(os.getpid()), kind, *words),
            cwd=Path(options.folder).expanduser() if options.folder else None,
            env=given,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.close()
        return cls(process, options.result_characters)

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.returncode

    @property
    def log(self) -> str:
        """The end of what it wrote to its log, in one line."""
        lines = self._log.decode("utf-8", "replace").strip().splitlines()
        return " ".join(lines[-1:])[-LOG_CHARACTERS:] or "without a word in its log"

    async def stop(self) -> None:
        """End it and what it has started in its process group."""
        if not self.ended.is_set():
            self._kill()
        await self._watching

    async def _watch(self, most: int) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        reading = asyncio.gather(self._read(self._process.stdout, most), self._follow(self._process.stderr))
        try:
            await _exit_of(self._process.pid)
            # A program that it has left behind may hold its output open.
            self._kill()
            await self._process.wait()
            self.result = (await reading)[0]
        finally:
            reading.cancel()
            self.ended.set()

    async def _read(self, stream: asyncio.StreamReader, most: int) -> str:
        kept = b""
        while part := await stream.read(CHUNK):
            kept = (kept + part)[: 4 * most]
        return kept.decode("utf-8", "replace")[:most].strip()

    async def _follow(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(CHUNK):
            self._log = (self._log + part)[-4 * LOG_CHARACTERS :]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


async def _exit_of(pid: int) -> None:
    """Wait until a child has exited; asyncio's own `wait` also waits for the ends of its pipes."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it has, and was reaped
        return
    exited, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
