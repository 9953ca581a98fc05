"""A sandbox for Python that a model wrote: one script, one short-lived process, hard limits, and what came of it.

    outcome = run_python("print(6 * 7)")
    outcome.kind, outcome.stdout        # ("ok", "42\\n")

The script runs in an interpreter of its own (see `environments.jail`), never in this process. Which walls stand
around it depends on the machine; `Outcome.layers` names them and docs/environments.md says what each one is worth.
"""

from __future__ import annotations

import contextlib
import logging
import marshal
import os
import selectors
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

logger = logging.getLogger(__name__)

Kind = Literal["ok", "error", "timeout", "memory", "output", "killed"]
START = (
    "import sys; sys.path = [*sys.path[1:], {root!r}]; from verl_hier.sandbox.runner import main; "
    "sys.path.pop(); main()"
)
ROOT = str(Path(__file__).parents[2])
START_LIMIT_S = 20.0
"""How long a script may take to start and to end beyond its own limit, on a machine that does other work."""

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}
"""All variables that a script sees, besides HOME. A fixed hash seed: equal scripts shall have equal outcomes."""

# Other systems have no such sockets; a stream does not join messages that carry descriptors.
MESSAGES = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM
FULL = frozenset(("namespaces", "private_root"))
_warned: set[tuple[str, ...]] = set()


class SandboxError(RuntimeError):
    """The sandbox itself could not be set up; no script is to blame. Inside an environment it costs the episode."""


@dataclass(frozen=True)
class SandboxLimits:
    """What a script may use up.

    Attributes:
        cpu_s: processor seconds of a process, whole ones.
        wall_s: seconds from the script's start to its end.
        memory_mb: address space of a process in MiB; the interpreter itself takes about 30.
        processes: processes and threads at a time, its own included.
        files_mb: size of a file, and of all files together where there is a private root, in MiB.
        output_bytes: bytes that it may write to standard output and standard error together.
        namespaces: whether to try namespaces at all; without them the weaker layers are all there is.
    """

    cpu_s: int = 2
    wall_s: float = 5.0
    memory_mb: int = 256
    processes: int = 1
    files_mb: int = 4
    output_bytes: int = 65536
    namespaces: bool = True

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "processes", "files_mb", "output_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.memory_mb < 64:
            raise ValueError(f"memory_mb must be at least 64, got {self.memory_mb}")


@dataclass(frozen=True)
class Outcome:
    """What came of a script.

    Attributes:
        kind: `ok`; `error` (an exception or an exit status other than 0); `timeout` (processor or wall time);
            `memory` (MemoryError); `output` (it wrote more than it may); `killed` (any other signal).
        stdout: what it wrote, up to the limit.
        stderr: the end of what it wrote there.
        status: exit status; minus the signal's number when a signal ended it.
        cpu_s: processor seconds that it took.
        wall_s: seconds that the whole call took, start-up included.
        layers: which walls stood around it.
    """

    kind: Kind
    stdout: str
    stderr: str
    status: int
    cpu_s: float
    wall_s: float
    layers: tuple[str, ...]


def run_python(code: str, limits: SandboxLimits | None = None, echo: bool = False) -> Outcome:
    """Run a script and wait for its end. Synchronous; safe to call from several threads.

    Args:
        code: the script; anything at all.
        limits: see `SandboxLimits`.
        echo: whether the value of a last line that is an expression is printed, as at Python's prompt.

    Returns:
        The outcome; a script cannot make this raise.

    Raises:
        SandboxError: when the interpreter does not start or its walls cannot be put up.
    """
    limits = limits or SandboxLimits()
    began = time.monotonic()
    work = _PORTER.folder()
    try:
        call = _Call(code, limits, echo, work)
        try:
            call.follow()
            return call.outcome(time.monotonic() - began)
        finally:
            call.end()
    finally:
        _remove(work)


class _Porter:
    """The process that forks one keeper a call: an interpreter that has started and loaded modules once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._door: socket.socket | None = None
        self._owner = 0
        self.base = ""

    def folder(self) -> str:
        """A new, empty directory for a call; starts the porter where there is none."""
        with self._lock:
            if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
                self._start()
        return tempfile.mkdtemp(dir=self.base)

    def call(self, folder: str, pipes: Sequence[int]) -> None:
        """Have a keeper take over the pipes."""
        assert self._door is not None
        try:
            with self._lock:
                socket.send_fds(self._door, [os.fsencode(folder)], list(pipes))
        except OSError as error:
            raise SandboxError(f"the sandbox's process does not answer ({error})") from error

    def _start(self) -> None:
        if self._door is not None:
            self._door.close()
        self.base = tempfile.mkdtemp(prefix="verl-hier-")
        # The porter does the same when this process is killed.
        weakref.finalize(self, shutil.rmtree, self.base, ignore_errors=True)
        # A script's user, which may not be ours, has to get to its own directory and no further.
        os.chmod(self.base, 0o711)
        self._door, theirs = socket.socketpair(socket.AF_UNIX, MESSAGES)
        with theirs:
            self._process = subprocess.Popen(
                # As isolated as -I, which would ignore the fixed hash seed as well.
                [sys.executable, "-s", "-S", "-c", START.format(root=ROOT), str(theirs.fileno()), self.base],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=ENVIRONMENT,
                start_new_session=True,
            )
        self._owner = os.getpid()


_PORTER = _Porter()


class _Call:
    """One running script: its pipes, what it wrote so far, and what its keeper says of it."""

    def __init__(self, code: str, limits: SandboxLimits, echo: bool, work: str) -> None:
        self._limits = limits
        self._written = {"stdout": bytearray(), "stderr": bytearray(), "status": bytearray()}
        self._too_much = False
        request, self._request = os.pipe()
        pairs = {name: os.pipe() for name in self._written}
        self._open = {name: ours for name, (ours, _) in pairs.items()}
        theirs = [request, *(end for _, end in pairs.values())]
        try:
            # The other side tells them apart by their order.
            _PORTER.call(work, theirs)
        except SandboxError:
            self._close()
            raise
        finally:
            for end in theirs:
                os.close(end)
        self._send(marshal.dumps({"code": code, "echo": echo, **asdict(limits)}))

    def _send(self, body: bytes) -> None:
        view = memoryview(struct.pack("!Q", len(body)) + body)
        # A broken pipe means that there is no keeper; `outcome` says so.
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._request, view) :]

    def follow(self) -> None:
        """Read until the keeper says that it is over."""
        deadline = time.monotonic() + self._limits.wall_s + START_LIMIT_S
        with selectors.DefaultSelector() as selector:
            for name, end in self._open.items():
                os.set_blocking(end, False)
                selector.register(end, selectors.EVENT_READ, name)
            while self._line("end") is None and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if not self._read(key.data):
                        if key.data == "status":
                            return
                        selector.unregister(key.fileobj)
        for name in ("stdout", "stderr"):
            # A process that outlived the script may hold the pipe open, so this takes what is there.
            while self._read(name):
                pass

    def _read(self, name: str) -> bool:
        """Take what a pipe has; False when it has nothing, or nothing more."""
        try:
            part = os.read(self._open[name], 65536)
        except BlockingIOError:
            return False
        room = self._limits.output_bytes - len(self._written["stdout"]) - len(self._written["stderr"])
        if name != "status" and len(part) > room:
            part, self._too_much = part[: max(room, 0)], True
            self._hang_up()
        self._written[name] += part
        return bool(part)

    def _hang_up(self) -> None:
        """Make the keeper kill the script."""
        if self._request >= 0:
            os.close(self._request)
            self._request = -1

    def _line(self, word: str) -> list[str] | None:
        """The keeper's or the inmate's line that begins with a word."""
        for line in self._written["status"].decode(errors="replace").splitlines():
            if line.startswith(word + " "):
                return line.split(" ")[1:]
        return None

    def outcome(self, wall_s: float) -> Outcome:
        """What the keeper reported, in our words."""
        end, layers, failed = self._line("end"), self._line("layers"), self._line("failed")
        stdout, stderr = (self._written[name].decode(errors="replace") for name in ("stdout", "stderr"))
        if end is None or layers is None:
            reason = " ".join(failed) if failed else stderr.strip()[-500:] or f"no answer after {wall_s:.0f} s"
            raise SandboxError(f"a sandbox could not be set up: {reason}")
        status, cpu_s = os.waitstatus_to_exitcode(int(end[0])), float(end[1])
        _warn(tuple(layers))
        kind: Kind = "ok" if status == 0 else "error" if status > 0 else "killed"
        if self._too_much:
            kind = "output"
        elif end[2] == "wall" or (status in (-signal.SIGKILL, -signal.SIGXCPU) and cpu_s >= self._limits.cpu_s - 0.1):
            kind = "timeout"
        elif kind == "error" and stderr.rstrip().rpartition("\n")[2].startswith("MemoryError"):
            kind = "memory"
        return Outcome(kind, stdout, stderr[-4000:], status, cpu_s, wall_s, tuple(layers))

    def end(self) -> None:
        """Make sure that nothing of it is left: the keeper closes its pipe when it goes."""
        self._hang_up()
        with selectors.DefaultSelector() as selector:
            selector.register(self._open["status"], selectors.EVENT_READ)
            while selector.select(2.0):
                if not self._read("status"):
                    break
            else:
                keeper = self._line("keeper")
                if keeper is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(keeper[0]), signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        self._hang_up()
        for end in self._open.values():
            os.close(end)


def _warn(layers: tuple[str, ...]) -> None:
    """Say once a process which walls are missing."""
    if not FULL.issubset(layers) and layers not in _warned:
        _warned.add(layers)
        logger.warning(
            "the sandbox for model-written Python has only these layers here: %s; see docs/environments.md#the-sandbox",
            ", ".join(layers),
        )


def _remove(folder: str) -> None:
    """Remove a directory, also one whose insides were made unreadable."""

    def again(function: Callable[..., Any], path: str, _: Any) -> None:
        os.chmod(os.path.dirname(path), stat.S_IRWXU)
        if not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
        (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)

    try:
        shutil.rmtree(folder, onerror=again)
    except OSError as error:
        logger.warning("a sandbox left %s behind: %s", folder, error)
