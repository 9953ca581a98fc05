"""Runs an agent: `launch.py <parent pid> function <reference>`, or `launch.py <parent pid> command <word>…`.

Any Python runs this file, which needs the standard library alone. The agent ends with the process that started it. A
function gets its task from the standard input; its result goes to the standard output, and what it prints to the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1


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
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec = importlib.util.spec_from_file_location("agent_file", place)
        if spec is None or spec.loader is None or not os.path.isfile(place):
            sys.exit(f"there is no file {place} in {os.getcwd()}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["agent_file"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        sys.exit(f"{place} has no function {name}")
    return function


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
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        function, task = named(words[0]), json.load(sys.stdin)
        result = function(task)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        out.write(result if isinstance(result, str) else json.dumps(result))


async def _awaited(result: Any) -> Any:
    return await result


if __name__ == "__main__":
    main()
