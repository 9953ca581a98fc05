"""Processes of verl: one at a time for each log file, watched while they run, and none of them left at the end."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Any

from verl_hier.errors import FileError, RolloutError
from verl_hier.graph.bounded_reading import parse_json, require_regular
from verl_hier.installed import points_of
from verl_hier.recipe.compose import MAIN

Records = list[dict[str, Any]]
Watch = Callable[["subprocess.Popen[bytes]"], bool]
POLL_S = 0.2
LAUNCHERS = "verl_hier.launchers"
"""The group of entry points of modules that run verl's main: `python -m LAUNCHER MODULE …`."""
MARK = "VERL_HIER_RUN"
"""Variable in the environment of every process of a run, by which those are found that have left its session."""
GRACE_S = 30.0
"""Ray needs a few seconds to end its processes."""
STARTS = 3
"""How often a process is started whose Ray does not come up in time."""
LATE = b"The current node timed out during startup"
"""Of Ray's `Node.__init__`, whose limit of 30 seconds nobody can change; nothing of the run has begun then."""
LAST_BYTES = 64 * 1024
"""Of a log, in which its last message stands."""


def launch(
    arguments: Sequence[str],
    log: Path,
    variables: Mapping[str, str],
    watch: Watch = lambda process: False,
    *,
    append: bool = False,
    folder: Path | None = None,
    limit_s: float = float("inf"),
) -> int | None:
    """Run `python -m …` to its end, in a session of its own; no process of it is left when this returns or raises.

    Ctrl-C reaches this process alone, which then ends the other one. SIGTERM and SIGHUP do the same. Where this process
    is killed, a keeper ends the others; see `compat/keeper.py`. A process that ends because Ray's own processes were
    late, as on a busy machine, is started again.

    Args:
        arguments: what follows `python -m`.
        log: file for everything that the process prints.
        variables: environment variables besides those of this process.
        watch: called with the process several times a second while it runs, and once after its end; True ends it.
        append: write after what is in `log` already.
        folder: working directory of the process; None for that of this one.
        limit_s: seconds after which the process is ended.

    Returns:
        The exit code, 128 + n for a process that signal n has ended, or None when `watch` ended it.

    Raises:
        RolloutError: naming the log, when another process writes to it, or when the limit is reached.
        KeyboardInterrupt: on Ctrl-C.
        SystemExit: with 128 + n as its code, on SIGTERM and SIGHUP.
    """
    deadline = time.monotonic() + limit_s

    def watch_in_time(process: subprocess.Popen[bytes]) -> bool:
        stops = watch(process)
        if not stops and process.poll() is None and time.monotonic() > deadline:
            raise RolloutError(f"the run took longer than {limit_s:.0f} s; its messages are in {log}.")
        return stops

    with _signals_raise(), log.open("a") as output:
        _lock(output)
        if not append:
            output.truncate(0)
        for left in reversed(range(STARTS)):
            begun = log.stat().st_size
            code = _run(arguments, output, variables, watch_in_time, folder)
            if not left or not code or not _said_late(log, begun):
                break
            output.write("verl-hier: Ray did not start within the 30 seconds that it allows itself; once more.\n")
            output.flush()
    return code


def _run(
    arguments: Sequence[str], output: IO[str], variables: Mapping[str, str], watch: Watch, folder: Path | None
) -> int | None:
    """One start of the process; see `launch`."""
    stopped = False
    ends, held = os.pipe()
    mark = uuid.uuid4().hex
    launchers = [point.module for point in points_of(LAUNCHERS) if find_spec(point.module) is not None]
    keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(ends)]
    process = subprocess.Popen(
        [*keeper, sys.executable, "-m", *(launchers if arguments[0] == MAIN else ()), *arguments],
        cwd=folder,
        env={
            # Lines reach the log as they are printed, in the order of both streams.
            "PYTHONUNBUFFERED": "1",
            # Ray's own 30 seconds are too short for a small machine that has other work.
            "RAY_gcs_server_port_wait_time_s": "120",
            **os.environ,
            **variables,
            "VERL_HIER_GRACE_S": str(GRACE_S),
            "VERL_HIER_LAUNCHERS": ",".join(launchers),
            MARK: mark,
        },
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(ends,),
    )
    os.close(ends)
    try:
        while process.poll() is None and not (stopped := watch(process)):
            time.sleep(POLL_S)
        if not stopped:
            watch(process)
    finally:
        _end(process, mark)
        os.close(held)
    if stopped:
        return None
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _said_late(log: Path, begun: int) -> bool:
    """Whether the last thing that a process said, after so many bytes of the log, is that Ray was late."""
    with log.open("rb") as file:
        file.seek(max(begun, log.stat().st_size - LAST_BYTES))
        return LATE in file.read()


def in_use(log: Path) -> bool:
    """Whether a process that `launch` has started, or one of its children, still writes to this file.

    Raises:
        FileError: for a pipe or a device.
    """
    if not log.exists():
        return False
    require_regular(log)  # a pipe would wait for a reader
    with log.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock(output: IO[str]) -> None:
    """The processes inherit the open file, and with it the lock, which ends with the last of them."""
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RolloutError(f"another run is under way in this folder: it writes to {output.name}.") from None


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP raise `SystemExit`, unless they are ignored (`nohup`)."""
    if threading.current_thread() is not threading.main_thread():
        # Python sets handlers in its main thread alone.
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    known = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in known.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a process and all others of its run; a second Ctrl-C does it at once."""
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
        process.terminate()
        process.wait(GRACE_S)
        _wait_for_end(process.pid, mark)
    for pid in _of_run(process.pid, mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    _wait_for_end(process.pid, mark)


def _wait_for_end(leader: int, mark: str) -> None:
    deadline = time.monotonic() + GRACE_S
    while _of_run(leader, mark) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _of_run(leader: int, mark: str) -> list[int]:
    """The processes of a run that have not ended: those of its session, and those that have left it with its mark."""
    import psutil

    sign = f"{MARK}={mark}".encode()
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            ours = os.getsid(pid) == leader or sign in Path(f"/proc/{pid}/environ").read_bytes()
            if ours and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


class Tail:
    """Reads a file of lines as it grows."""

    def __init__(self, file: Path, start: int = 0) -> None:
        """
        Args:
            file: it need not exist yet.
            start: bytes that are left out.
        """
        self._file = file
        self._read = start

    def lines(self) -> list[bytes]:
        """The lines that were finished since the last call, each with its end of line."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._read)
            lines = [line for line in file if line.endswith(b"\n")]
        self._read += sum(map(len, lines))
        return lines


def parse_metrics(lines: Iterable[bytes], where: str = "the metrics of the run") -> Records:
    """Lines of verl's file logger as the metrics of steps, with the number of the step as `step`.

    Raises:
        FileError: naming `where`, for a line of another kind.
    """
    records: Records = []
    for number, line in enumerate(lines, start=1):
        record = parse_json(line.decode(errors="replace"), f"{where}, line {number},")
        data = record.get("data") if isinstance(record, dict) else None
        if not isinstance(data, dict) or type(record.get("step")) is not int:
            raise FileError(f"{where}, line {number}, does not hold the metrics of a step.")
        records.append({"step": record["step"], **data})
    return records


def read_metrics(file: Path) -> Records:
    """Metrics of the steps that verl's file logger has written by now; see `parse_metrics`."""
    if file.exists():
        require_regular(file)
    return parse_metrics(Tail(file).lines(), str(file))
