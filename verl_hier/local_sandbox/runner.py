"""The program that runs sandboxed scripts; started by `verl_hier.local_sandbox.local`.

There are three kinds of process. The zygote is started once, loads the usual modules and waits for calls; for each it
forks a supervisor. The supervisor reads the request, enters new namespaces where the kernel permits, starts the script
process, kills it when its time is over or when the caller hangs up, and reports the cause of its end. The script
process sets up the layers of `isolation` and takes verl-hier out of itself before it looks at the script.
"""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time
from importlib.machinery import PathFinder
from typing import Any

from verl_hier.local_sandbox import folders, isolation, script, syscalls
from verl_hier.local_sandbox.folders import is_too_full
from verl_hier.local_sandbox.script import OUT_OF_MEMORY, STATUS

# The modules that scripts use most, loaded once here instead of in every call.
PRELOADED = (
    *("collections", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json"),
    *("math", "operator", "re", "statistics", "string"),
)
NEED_LIBRARIES = (
    *(
        "_bz2",
        "_crypt",
        "_ctypes",
        "_curses",
        "_curses_panel",
        "_dbm",
        "_decimal",
        "_gdbm",
        "_hashlib",
        "_lzma",
        "_posixshmem",
    ),
    *("_sqlite3", "_ssl", "_uuid", "_zstd", "math", "nis", "pyexpat", "readline", "zlib"),
)
"""Modules of the standard library that may be linked with C libraries."""

SETUP_LIMIT_S = 15.0
"""How long the isolation layers may take to set up; generous, for busy machines."""
EXIT_GRACE_S = 0.5
"""How long supervisors get to kill their scripts when the caller is gone."""
FILES_INTERVAL_S = 0.05
"""How often the files of a script are counted."""
BEGUN = b"b"
"""What the script process writes to its supervisor before the script."""

# ---- the supervisor --------------------------------------------------------------------------------------------------


def supervise(request: dict[str, Any]) -> None:
    """Start the script process and watch it; reports `end <wait status> <processor seconds> <cause>`."""
    signals, wakeup = os.pipe()
    events, event = os.pipe()
    for end in (signals, wakeup, events):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup)
    for number in (signal.SIGCHLD, signal.SIGXCPU):
        signal.signal(number, lambda *_: None)
    isolated = request["namespaces"] and isolation.unshare()
    request["uid"] = isolation.FIRST_UID + os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        be_script(request, isolated, event)
    os.close(event)
    has_timer = isolation.start_cpu_timer(pid, request["cpu_s"], signal.SIGXCPU)
    status, usage, killed_for = watch(pid, signals, events, request["wall_s"], request["files_mb"] << 20)
    cause = killed_for or cause_of_end(status, has_timer, read_all(signals), read_all(events))
    if not isolated:
        # Processes that the script left behind; with a process namespace they are gone already.
        _kill(pid)
        if os.geteuid() == 0:
            isolation.kill_user(request["uid"])
    report(f"end {status} {usage.ru_utime + usage.ru_stime:.3f} {cause}")


def watch(pid: int, signals: int, events: int, wall_s: float, files: int) -> tuple[int, Any, str]:
    """Wait for the script process to end, or kill it.

    Args:
        pid: the script process.
        signals: pipe with the numbers of the signals that arrived: SIGCHLD when the script process has ended, SIGXCPU
            when it has used up its processor time.
        events: pipe from the script process; its first byte says that the script begins, and with it its wall time.
        wall_s: seconds of wall time.
        files: bytes that the files in the current directory may have together. With a private root the script's files
            are elsewhere, and the kernel limits them.

    Returns:
        Wait status, resource usage, and why it was killed here: `cpu`, `wall`, `files`, `caller`, or empty.
    """
    killed_for = ""
    deadline = time.monotonic() + SETUP_LIMIT_S
    watched = [0, signals, events]
    while True:
        done, status, usage = os.wait4(pid, 0 if killed_for else os.WNOHANG)
        if done:
            return status, usage, killed_for
        left = deadline - time.monotonic()
        readable, _, _ = select.select(watched, [], [], min(max(left, 0), FILES_INTERVAL_S))
        if signals in readable:
            killed_for = "cpu" if signal.SIGXCPU in read_all(signals) else ""
        elif 0 in readable:
            killed_for = "caller"
        elif events in readable:
            watched.remove(events)
            deadline = time.monotonic() + wall_s
        elif left <= 0:
            killed_for = "wall"
        elif is_too_full(".", files, isolation.MOST_FILES):
            killed_for = "files"
        if killed_for:
            _kill(pid)


def cause_of_end(status: int, has_timer: bool, signals: bytes, events: bytes) -> str:
    """Why a script ended that was not killed by its supervisor; no measured time enters.

    Args:
        status: wait status.
        has_timer: whether the kernel sends SIGXCPU to the supervisor when the processor time is used up. Without that
            a SIGKILL is taken for the kernel's own limit.
        signals: numbers of the signals that arrived and were not handled yet.
        events: what the script process reported.

    Returns:
        `cpu`, `signal`, `memory` or `exit`.
    """
    if os.WIFSIGNALED(status):
        # A script that ignores SIGXCPU meets the kernel's hard limit a second of processor time after the timer.
        expired = signal.SIGXCPU in (*signals, os.WTERMSIG(status))
        limited = not has_timer and os.WTERMSIG(status) == signal.SIGKILL
        return "cpu" if expired or limited else "signal"
    return "memory" if OUT_OF_MEMORY in events else "exit"


def read_all(pipe: int) -> bytes:
    """What a non-blocking pipe holds."""
    try:
        return os.read(pipe, 65536)
    except BlockingIOError:
        return b""


def _kill(pid: int) -> None:
    """Kill the script's session; in a process namespace that ends everything that it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
            return
        except OSError:
            # It has ended, or has not started its own session yet.
            continue


def report(line: str) -> None:
    """Write a status line for the caller."""
    os.write(STATUS, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")


# ---- the script process ----------------------------------------------------------------------------------------------


def be_script(request: dict[str, Any], isolated: bool, event: int) -> None:
    """Set up the isolation layers, report `layers …` (or `failed …`), run the script, exit."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        layers = isolation.set_up(request, isolated)
    except BaseException as error:
        report(f"failed {type(error).__name__}: {error}")
        os._exit(1)
    report("layers " + " ".join(layers))
    # The pipe to the supervisor takes the place of the status pipe; everything else that is open is closed.
    os.dup2(event, STATUS, inheritable=False)
    os.closerange(STATUS + 1, 1024)
    os.write(STATUS, BEGUN)
    code, echo = request.pop("code"), request.pop("echo")
    run, leave = script.run, script.leave
    script.take_out(vars(isolation), vars(syscalls), vars(folders), globals())
    leave(run(code, echo))


# ---- the zygote ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Fork a supervisor for each message: a directory, with four pipe ends (request, stdout, stderr, status).

    The command line names the socket, and the directory that holds those of all calls. Returns when the caller is gone.
    """
    for name in PRELOADED:
        __import__(name)
    load_libraries()
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    calls = socket.socket(fileno=int(sys.argv[1]))
    while True:
        folder, pipes, _, _ = socket.recv_fds(calls, 4096, 4)
        if not folder:
            time.sleep(EXIT_GRACE_S)
            folders.remove(sys.argv[2])
            return
        try:
            pid = os.fork()
        except OSError:
            # The caller sees that its pipes are closed.
            pid = -1
        if pid == 0:
            calls.close()
            try:
                be_supervisor(os.fsdecode(folder), pipes)
            except BaseException as error:
                report(f"failed {type(error).__name__}: {error}")
            finally:
                os._exit(0)
        for pipe in pipes:
            os.close(pipe)


def prepare() -> None:
    """Compute what is the same for every script, so that its process need not."""
    isolation.readable_paths()
    with contextlib.suppress(OSError):
        for attributes in (False, True):
            syscalls.program(False, attributes)


def load_libraries() -> None:
    """Load the C libraries that modules of the standard library need, because a script cannot read them.

    A module that Python has built in needs nothing, one that is missing here cannot be imported by a script either.
    """
    for name in NEED_LIBRARIES:
        found = PathFinder.find_spec(name)
        if found is not None and found.origin is not None:
            with contextlib.suppress(OSError):
                ctypes.CDLL(found.origin)
    with contextlib.suppress(OSError):
        # The GNU C library loads it when a thread ends.
        ctypes.CDLL("libgcc_s.so.1")


def be_supervisor(folder: str, pipes: list[int]) -> None:
    """Turn the pipes into the standard streams and `STATUS`, read the request, supervise."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
    os.closerange(STATUS + 1, 1024)
    os.setsid()
    os.chdir(folder)
    report(f"supervisor {os.getpid()}")
    (size,) = struct.unpack("!Q", _receive(8))
    supervise(marshal.loads(_receive(size)))


def _receive(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
