"""The program that runs sandboxed scripts; started by `verl_hier.sandbox.provider`.

Three kinds of process. The porter is started once and waits, with the usual modules loaded, for calls; for each it
forks a keeper. The keeper reads the request, enters namespaces of its own where the kernel lets it, starts the inmate,
and kills it when its time is over or when the caller hangs up. The inmate puts up the walls of `environments.walls`
and only then looks at the script. What a script finds of verl-hier are these two modules, and they keep no secret.
"""

from __future__ import annotations

import atexit
import marshal
import os
import random
import select
import shutil
import signal
import socket
import struct
import sys
import time
from typing import Any

from verl_hier.sandbox import isolation

STATUS = 3
# What scripts use most; loaded once here and not in every call.
PRELOADED = (
    *("_ast", "collections", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json"),
    *("linecache", "math", "operator", "re", "statistics", "string", "traceback"),
)
SETUP_LIMIT_S = 15.0
"""How long walls may take to stand, on a machine that does other work."""
LEAVE_S = 0.5
"""How long keepers get to kill their inmates when the caller is gone."""

# ---- the keeper ------------------------------------------------------------------------------------------------------


def keep(request: dict[str, Any]) -> None:
    """Start the inmate and watch over it; tells `end <wait status> <processor seconds> <reason>` at the end."""
    alarm, bell = os.pipe()
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ready, begins = os.pipe()
    walled = request["namespaces"] and isolation.unshare()
    request["uid"] = isolation.FIRST_UID + os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve_time(request, walled)
    os.close(begins)
    status, usage, reason = watch(pid, alarm, ready, request["wall_s"])
    if not walled:
        # What it started and left behind; in a process namespace that is gone already.
        _kill(pid)
    tell(f"end {status} {usage.ru_utime + usage.ru_stime:.3f} {reason}")


def watch(pid: int, alarm: int, ready: int, wall_s: float) -> tuple[int, Any, str]:
    """Wait for the inmate's end or bring it about.

    Args:
        pid: the inmate.
        alarm: can be read when a child has ended.
        ready: is closed on the other side when the script begins, which is when its time begins.
        wall_s: its time.

    Returns:
        Its wait status, what it used, and who ended it.
    """
    reason = "itself"
    deadline = time.monotonic() + SETUP_LIMIT_S
    signs = [0, alarm, ready]
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG if reason == "itself" else 0)
        if done:
            return status, usage, reason
        left = deadline - time.monotonic()
        seen, _, _ = select.select(signs, [], [], max(left, 0))
        if alarm in seen:
            os.read(alarm, 64)
        elif 0 in seen:
            reason = "caller"
        elif ready in seen:
            signs.remove(ready)
            deadline = time.monotonic() + wall_s
        elif left <= 0:
            reason = "wall"
        if reason != "itself":
            _kill(pid)


def _kill(pid: int) -> None:
    """The inmate leads a session; in a process namespace its end is the end of all that it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
            return
        except OSError:
            # It is over, or did not get as far as its own session.
            continue


def tell(line: str) -> None:
    """A line for the caller."""
    os.write(STATUS, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")


# ---- the inmate ------------------------------------------------------------------------------------------------------


def serve_time(request: dict[str, Any], walled: bool) -> None:
    """Put up the walls, tell `layers …` (or `failed …`), run the script, exit."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        layers = isolation.put_up(request, walled)
    except BaseException as error:
        tell(f"failed {type(error).__name__}: {error}")
        os._exit(1)
    tell("layers " + " ".join(layers))
    # The status pipe and whatever else is open.
    os.closerange(STATUS, 1024)
    leave(run(request["code"], request["echo"]))


def run(code: str, echo: bool) -> int:
    """Run the script as `__main__`; with `echo` the value of a last expression is printed, as a prompt would.

    Returns:
        The exit status.
    """
    import _ast
    from types import ModuleType

    for name in ("ctypes", "_ctypes"):
        sys.modules.pop(name, None)
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["script.py"]
    # Equal scripts shall have equal outcomes.
    random.seed(0)
    try:
        tree: Any = compile(code, "script.py", "exec", _ast.PyCF_ONLY_AST)
        last = tree.body.pop() if echo and tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "script.py", "exec"), main.__dict__)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), "script.py", "eval"), main.__dict__)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
    except MemoryError:
        # Telling where takes memory that is not there.
        os.write(2, b"MemoryError\n")
    except BaseException as error:
        _show(error, code)
    return 1


def leave(status: int) -> None:
    """End as the interpreter would, without the ten milliseconds that it takes to tidy up before."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


OURS = (__file__, isolation.__file__)


def _show(error: BaseException, code: str) -> None:
    """The traceback of the script's own frames, with its lines."""
    import linecache
    import traceback

    linecache.cache["script.py"] = len(code), None, code.splitlines(keepends=True), "script.py"
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list([frame for frame in told.stack if frame.filename not in OURS])
    sys.stderr.writelines(told.format())


# ---- the porter ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Fork a keeper for each message: a directory, with the ends of four pipes (request, stdout, stderr, status).

    The command line names a socket, and the directory that holds those of all calls. Returns when the caller is gone.
    """
    for name in PRELOADED:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    door = socket.socket(fileno=int(sys.argv[1]))
    while True:
        folder, pipes, _, _ = socket.recv_fds(door, 4096, 4)
        if not folder:
            time.sleep(LEAVE_S)
            shutil.rmtree(sys.argv[2], ignore_errors=True)
            return
        try:
            pid = os.fork()
        except OSError:
            # The caller sees that its pipes are closed.
            pid = -1
        if pid == 0:
            door.close()
            try:
                _take_over(os.fsdecode(folder), pipes)
            except BaseException as error:
                tell(f"failed {type(error).__name__}: {error}")
            finally:
                os._exit(0)
        for pipe in pipes:
            os.close(pipe)


def _take_over(folder: str, pipes: list[int]) -> None:
    """Be a keeper: the pipes become the standard streams and `STATUS`."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
    os.closerange(STATUS + 1, 1024)
    os.setsid()
    os.chdir(folder)
    tell(f"keeper {os.getpid()}")
    (size,) = struct.unpack("!Q", _receive(8))
    keep(marshal.loads(_receive(size)))


def _receive(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
