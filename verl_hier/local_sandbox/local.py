"""The built-in sandbox: each script is a short-lived process on this machine, with limits and isolation layers.

    outcome = run_python("print(6 * 7)")
    outcome.kind, outcome.stdout        # ("ok", "42\\n")

The script runs in a fresh interpreter (see `runner`), never in this process. The isolation layers depend on the
machine; `Outcome.layers` names them and docs/environments.md says what each one protects against.
"""

from __future__ import annotations

import contextlib
import logging
import marshal
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast, get_args

from verl_hier.local_sandbox.folders import remove
from verl_hier.sandbox.provider import Cause, Kind, Outcome, Promise, SandboxError, SandboxLimits

logger = logging.getLogger(__name__)

START = (
    "import sys; sys.path = [*sys.path[1:], {root!r}]; from verl_hier.local_sandbox.runner import main; "
    "sys.path.pop(); main()"
)
ROOT = str(Path(__file__).parents[2])
START_LIMIT_S = 20.0
"""How long a script may take to start and to end beyond its own limit; generous, for busy machines."""

SCRIPT_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}
"""All environment variables of a script besides HOME. The fixed hash seed makes equal scripts have equal outcomes."""

# Only Linux has sequenced-packet Unix sockets; elsewhere a stream keeps messages apart that carry descriptors.
SOCKET_TYPE = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM
KIND_OF_CAUSE: dict[Cause, Kind] = {
    **{"cpu": "timeout", "wall": "timeout", "memory": "memory", "files": "output", "output": "output"},
    "signal": "killed",
}
"""For each cause of death; with `exit` the kind is `ok` or `error` by the exit status."""

REMOVAL_LIMIT_S = 1.0
"""How long a call waits for the removal of its folder, which a thread completes otherwise."""

_told: set[tuple[str, ...]] = set()


class LocalSandbox:
    """A `SandboxProvider` on this machine.

    It starts the zygote at the first call: an interpreter that has loaded the usual modules once and forks a
    supervisor, and that a script process, for each call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0
        self.base = ""

    def run_python(self, code: str, limits: SandboxLimits | None = None, echo: bool = False) -> Outcome:
        """See `SandboxProvider.run_python`."""
        limits = limits or SandboxLimits()
        began = time.monotonic()
        folder = self._new_folder()
        try:
            run = _Run(self, code, limits, echo, folder)
            try:
                run.wait()
                return run.outcome(time.monotonic() - began)
            finally:
                run.close()
        finally:
            if not remove(folder, REMOVAL_LIMIT_S):
                threading.Thread(target=_remove_all, args=(folder,), daemon=True).start()

    def promises(self) -> frozenset[Promise]:
        """See `SandboxProvider.promises`; runs an empty script."""
        return promises_of(self.run_python("").layers)

    def start_supervisor(self, folder: str, pipes: Sequence[int]) -> None:
        """Ask the zygote for a supervisor that works in a folder and takes over the pipes."""
        assert self._socket is not None
        try:
            with self._lock:
                socket.send_fds(self._socket, [os.fsencode(folder)], list(pipes))
        except OSError as error:
            raise SandboxError(f"the sandbox's process does not answer ({error})") from error

    def _new_folder(self) -> str:
        """A new, empty directory for a script; starts the zygote if there is none."""
        with self._lock:
            if self._zygote is None or self._zygote.poll() is not None or self._owner != os.getpid():
                self._start_zygote()
        return tempfile.mkdtemp(dir=self.base)

    def _start_zygote(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.base = tempfile.mkdtemp(prefix="verl-hier-")
        # The zygote does the same when this process is killed.
        weakref.finalize(self, remove, self.base)
        # A script may run as another user, who has to reach its own directory and no further.
        os.chmod(self.base, 0o711)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, SOCKET_TYPE)
        with theirs:
            self._zygote = subprocess.Popen(
                # As isolated as with -I, which would ignore the fixed hash seed as well.
                [sys.executable, "-s", "-S", "-c", START.format(root=ROOT), str(theirs.fileno()), self.base],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=SCRIPT_VARIABLES,
                start_new_session=True,
            )
        self._owner = os.getpid()


class _Run:
    """One running script: its pipes, what it wrote so far, and what its supervisor reports."""

    def __init__(self, sandbox: LocalSandbox, code: str, limits: SandboxLimits, echo: bool, folder: str) -> None:
        self._limits = limits
        self._written = {"stdout": bytearray(), "stderr": bytearray(), "status": bytearray()}
        self._too_much_output = False
        request, self._request = os.pipe()
        pairs = {name: os.pipe() for name in self._written}
        self._open = {name: ours for name, (ours, _) in pairs.items()}
        theirs = [request, *(end for _, end in pairs.values())]
        try:
            # The runner tells the pipes apart by their order.
            sandbox.start_supervisor(folder, theirs)
        except SandboxError:
            self._close_pipes()
            raise
        finally:
            for end in theirs:
                os.close(end)
        self._send(marshal.dumps({"code": code, "echo": echo, **asdict(limits)}))

    def _send(self, body: bytes) -> None:
        view = memoryview(struct.pack("!Q", len(body)) + body)
        # A broken pipe means that there is no supervisor; `outcome` reports that.
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._request, view) :]

    def wait(self) -> None:
        """Read until the supervisor reports the end."""
        deadline = time.monotonic() + self._limits.wall_s + START_LIMIT_S
        with selectors.DefaultSelector() as selector:
            for name, end in self._open.items():
                os.set_blocking(end, False)
                selector.register(end, selectors.EVENT_READ, name)
            while self._report("end") is None and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if not self._read(key.data):
                        if key.data == "status":
                            return
                        selector.unregister(key.fileobj)
        for name in ("stdout", "stderr"):
            # A process that outlived the script may hold the pipe open, so only what is there is read.
            while self._read(name):
                pass

    def _read(self, name: str) -> bool:
        """Read what a pipe holds; False when it is empty or closed."""
        try:
            part = os.read(self._open[name], 65536)
        except BlockingIOError:
            return False
        room = self._limits.output_bytes - len(self._written["stdout"]) - len(self._written["stderr"])
        if name != "status" and len(part) > room:
            part, self._too_much_output = part[: max(room, 0)], True
            self._hang_up()
        self._written[name] += part
        return bool(part)

    def _hang_up(self) -> None:
        """Make the supervisor kill the script."""
        if self._request >= 0:
            os.close(self._request)
            self._request = -1

    def _report(self, word: str) -> list[str] | None:
        """The rest of the status line that begins with a word."""
        for line in self._written["status"].decode(errors="replace").splitlines():
            if line.startswith(word + " "):
                return line.split(" ")[1:]
        return None

    def outcome(self, wall_s: float) -> Outcome:
        """The supervisor's report as an `Outcome`."""
        end, layers, failed = self._report("end"), self._report("layers"), self._report("failed")
        stdout, stderr = (self._written[name].decode(errors="replace") for name in ("stdout", "stderr"))
        if end is None or layers is None:
            reason = " ".join(failed) if failed else stderr.strip()[-500:] or f"no answer after {wall_s:.0f} s"
            raise SandboxError(f"a sandbox could not be set up: {reason}")
        status, cpu_s, cause = os.waitstatus_to_exitcode(int(end[0])), float(end[1]), cast(Cause, end[2])
        _tell_once(tuple(layers))
        if self._too_much_output:
            cause = "output"
        kind = KIND_OF_CAUSE.get(cause, "error" if status else "ok")
        return Outcome(kind, stdout, stderr[-4000:], status, cpu_s, wall_s, tuple(layers), cause)

    def close(self) -> None:
        """Make sure that no process remains: the supervisor closes its pipe when it ends."""
        self._hang_up()
        with selectors.DefaultSelector() as selector:
            selector.register(self._open["status"], selectors.EVENT_READ)
            while selector.select(2.0):
                if not self._read("status"):
                    break
            else:
                supervisor = self._report("supervisor")
                if supervisor is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(supervisor[0]), signal.SIGKILL)
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._hang_up()
        for end in self._open.values():
            os.close(end)


_SANDBOX = LocalSandbox()


def run_python(code: str, limits: SandboxLimits | None = None, echo: bool = False) -> Outcome:
    """Run a script in this process's `LocalSandbox`; see `SandboxProvider.run_python`."""
    return _SANDBOX.run_python(code, limits, echo)


def promises_of(layers: Collection[str]) -> frozenset[Promise]:
    """What the isolation layers of a script keep from it; see SECURITY.md."""
    layers = set(layers)
    filtered = "seccomp" in layers
    kept: dict[Promise, bool] = {
        "network": filtered or "namespaces" in layers,
        # Landlock does not refuse to change modes and times of files, which the filter does.
        "files": "private_root" in layers or {"landlock", "seccomp"} <= layers,
        "processes": not layers.isdisjoint(("seccomp", "namespaces", "user")),
        # Other kinds of memory than the limit counts, such as shared memory.
        "memory": filtered,
    }
    return frozenset(promise for promise, is_kept in kept.items() if is_kept)


def _tell_once(layers: tuple[str, ...]) -> None:
    """Say once a process which layers there are, as a warning where one of the promises is not kept."""
    if layers in _told:
        return
    _told.add(layers)
    missing = sorted(set(get_args(Promise)) - promises_of(layers))
    if missing:
        logger.warning(
            "the sandbox for model-written Python does not protect %s here; it has only these layers: %s (SECURITY.md)",
            " and ".join(missing),
            ", ".join(layers),
        )
    else:
        logger.info("the sandbox for model-written Python has the layers %s", ", ".join(layers))


def _remove_all(folder: str) -> None:
    if not remove(folder):
        logger.warning("a sandbox left %s behind", folder)
