"""Runs a command and lets nothing of it live on: `python keeper.py <descriptor> <command …>`, started by `launch`.

The descriptor is the end of a pipe whose other end only the process that asked for the command holds; when that one has
died, the pipe ends, and the keeper kills the command and everything below it. Orphans become the keeper's own children
(Linux, PR_SET_CHILD_SUBREAPER), so nothing escapes by a session of its own. The command dies with the keeper.

It also watches the processes without which a run of Ray may wait for ever: its daemons and actors. When one of them has
died, and the command has printed nothing for a long time since, the keeper ends it and says why.

Only the standard library, because it starts before everything else and must not fail with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = float(os.environ.get("VERL_HIER_GRACE_S", "30"))
"""Ray needs a few seconds to end its processes."""
LOST_S = float(os.environ.get("VERL_HIER_LOST_S", "600"))
"""Seconds without a word after which a run that has lost a process is taken to wait for it."""
POLL_S = 0.2
_LOOK_S, _SETTLED_S = 1.0, 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_DAEMON = re.compile(r"(?:.*/)?(raylet|gcs_server)$")
_ACTOR = re.compile(r"(ray::(?!IDLE|SPILL|RESTORE|DELETE|UTIL)\w+)(?:\.\w+(?:\(\))?)?$")
"""Ray names a process after its actor, and the method that it runs; functions and idle workers come and go."""
_LAUNCHERS = tuple(filter(None, os.environ.get("VERL_HIER_LAUNCHERS", "").split(",")))
"""Beginnings of the modules whose processes Ray's workers may be forks of; see `compat/launch.py`."""


class Keeper:
    """One command, and the processes below it."""

    def __init__(self, descriptor: int, command: list[str]) -> None:
        self._descriptor = descriptor
        self._status: int | None = None
        self._needed: dict[int, tuple[str, float]] = {}
        self._lost: tuple[str, float] | None = None
        self._looked = 0.0
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        me = os.getpid()
        self._main = os.fork()
        if self._main == 0:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == me:
                os.execvp(command[0], command)
            os._exit(1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._forward)

    def keep(self) -> int:
        """Wait for the end of everything; returns the exit code of the command, 128 + n for signal n."""
        while self._status is None:
            if self._orphaned(POLL_S):
                self._kill_all()
                return 128 + signal.SIGKILL
            self._reap()
            self._watch()
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and _below(os.getpid()) and not self._orphaned(POLL_S):
            self._reap()
        self._kill_all()
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _forward(self, number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._main, number)

    def _orphaned(self, wait_s: float) -> bool:
        """Whether the process that asked for the command has ended; waits for it a moment."""
        return bool(select.select([self._descriptor], [], [], wait_s)[0])

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._main:
                    self._status = status

    def _watch(self) -> None:
        """End a command that goes on without a process that it needs."""
        now = time.monotonic()
        if self._lost is not None:
            name, since = self._lost
            if min(now - since, time.time() - os.fstat(1).st_mtime) > LOST_S:
                sys.stderr.write(f"verl_hier.errors.RolloutError: the process {name} of the run has died\n")
                sys.stderr.flush()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._main, signal.SIGKILL)
        elif now - self._looked > _LOOK_S:
            self._looked = now
            gone = [f"{name} ({pid})" for pid, (name, since) in self._needed.items() if now > since and not _alive(pid)]
            if gone:
                self._lost = (gone[0], now)
            present = ((pid, _needed(pid)) for pid in _below(os.getpid()))
            self._needed = {pid: self._needed.get(pid, (name, self._settled(pid))) for pid, name in present if name}

    def _settled(self, pid: int) -> float:
        """From when on a process is missed; an orphan that dies young was a fork on its way to another program."""
        return time.monotonic() + (_SETTLED_S if _parent(pid) == os.getpid() else 0.0)

    def _kill_all(self) -> None:
        while below := _below(os.getpid()):
            for pid in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/PID/stat` from the state on; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    """0 for a process that is gone."""
    return int((_stat(pid) or ["", "0"])[1])


def _alive(pid: int) -> bool:
    found = _stat(pid)
    return bool(found) and found[0] not in "ZX"


def _below(root: int) -> list[int]:
    """The processes below one that have not ended, their children after them."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        found = _stat(pid)
        if found:
            children.setdefault(int(found[1]), []).append(pid)
    below: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        below += level
    return [pid for pid in below if _alive(pid)]


def _pids() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _needed(pid: int) -> str:
    """What a process is called that a run cannot go on without; empty for others."""
    title = _words(pid)[0]
    daemon, actor = _DAEMON.match(title), _ACTOR.match(title)
    if not (daemon or actor):
        return ""
    # A fork has the title of its parent: a daemon's before it becomes a worker, an actor's as worker of a data loader.
    parent = _words(_parent(pid))
    below_daemon = bool(_DAEMON.match(parent[0]))
    if daemon:
        return "" if below_daemon else daemon[1]
    return actor[1] if actor and (below_daemon or any(word.startswith(_LAUNCHERS) for word in parent)) else ""


def _words(pid: int) -> list[str]:
    """What a process was started with, or calls itself; one empty word for a process that is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [""]
    return [word.decode(errors="replace").strip() for word in words]


def main() -> None:
    """Keep the command that the arguments name."""
    sys.exit(Keeper(int(sys.argv[1]), sys.argv[2:]).keep())


if __name__ == "__main__":
    main()
