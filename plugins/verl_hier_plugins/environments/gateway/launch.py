"""Runs agents: `launch.py <parent pid> command <word>…`, `… function <reference>`, or `… server <reference> <fd>`.

Any Python runs this file, which needs the standard library alone. What it starts ends with the process that started
it. A command and a function get their task from the standard input. A server imports the function once and makes a
copy of itself for each run that it is asked for at the socket `fd`. A function's result goes to the standard output,
and what it prints to the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
HEADER = struct.Struct("!I")


def end_with(parent: int) -> None:
    """Let the kernel end this process with the one that started it."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this agent is gone")


def named(reference: str) -> Callable[[Any], Any]:
    """The function `package.module:function` or `path/to/file.py:function`."""
    place, _, name = reference.rpartition(":")
    if place.endswith(".py"):
        if not os.path.isfile(place):
            sys.exit(f"there is no file {place} in {os.getcwd()}")
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec = importlib.util.spec_from_file_location("agent_file", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["agent_file"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        sys.exit(f"{place} has no function {name}")
    return function


def run(function: Callable[[Any], Any], task: Any, out: int) -> None:
    """Call an agent's function and write its result to a descriptor."""
    result = function(task)
    if hasattr(result, "__await__"):
        import asyncio

        async def awaited() -> Any:
            return await result

        result = asyncio.run(awaited())
    with os.fdopen(out, "w") as file:
        file.write(result if isinstance(result, str) else json.dumps(result))


def serve(function: Callable[[Any], Any], requests: socket.socket, out: int) -> None:
    """Run an agent's function in a copy of this process for each request; report starts and ends as lines of JSON."""
    running: dict[int, int] = {}
    while True:
        listens = requests.fileno()
        ready, _, _ = select.select([listens, *running], [], [])
        for descriptor in ready:
            if descriptor != listens:
                pid = running.pop(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(out, json.dumps({"ended": pid, "status": status}).encode() + b"\n")
                continue
            header, descriptors, _, _ = socket.recv_fds(requests, HEADER.size, 2)
            if not header:
                return
            body = b""
            while len(body) < HEADER.unpack(header)[0]:
                body += requests.recv(HEADER.unpack(header)[0] - len(body))
            me = os.getpid()
            pid = os.fork()
            if pid == 0:
                copy(function, json.loads(body), descriptors, me, (requests.fileno(), out, *running))
            for each in descriptors:
                os.close(each)
            running[os.pidfd_open(pid)] = pid
            os.write(out, json.dumps({"began": pid}).encode() + b"\n")


def copy(
    function: Callable[[Any], Any], request: Any, descriptors: list[int], parent: int, close: tuple[int, ...]
) -> None:
    """What a copy of the server does; it does not return."""
    status = 1
    try:
        os.setsid()
        end_with(parent)
        for descriptor in close:
            os.close(descriptor)
        out, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(request["variables"])
        run(function, request["task"], out)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")  # as the interpreter does
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Run what the arguments name."""
    # This file's own folder is no place for the agent's modules.
    sys.path[0] = os.getcwd()
    parent, kind, *words = sys.argv[1:]
    end_with(int(parent))
    if kind == "command":
        try:
            os.execvp(words[0], words)
        except OSError as error:
            sys.exit(f"the command {words[0]!r} cannot be started: {error.strerror}")
    # What the agent or its packages print is no result.
    out = os.dup(1)
    os.dup2(2, 1)
    function = named(words[0])
    if kind == "server":
        with socket.socket(fileno=int(words[1])) as requests:
            serve(function, requests, out)
    else:
        run(function, json.load(sys.stdin), out)


if __name__ == "__main__":
    main()
