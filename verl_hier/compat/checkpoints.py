"""The folder of a run's checkpoints: one writer at a time, and which checkpoint is the newest whole one."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from verl_hier.errors import MAKE_ROOM, HierError, RecipeError, RolloutError, disk_full
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import read_text

TRACKER = "latest_checkpointed_iteration.txt"
"""verl writes it after everything else of a checkpoint; it names the step of the newest complete one."""
WHOLE = "hier_whole"
"""A file of ours in a checkpoint, written when everything else is there."""
WRITER = "hier_writer.lock"


def claim(folder: Path) -> IO[str]:
    """Become the one writer of a folder of checkpoints, until this process ends or the returned file is closed.

    Raises:
        RecipeError: when another process is, with what that one has written about itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / WRITER).open("a+", encoding="utf-8")
    try:
        # The kernel takes a lock away when its holder dies; on NFS it also holds between machines.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read(500).strip() or "another process"
        lock.close()
        raise RecipeError(
            f"trainer.default_local_dir: {holder} is training in {folder}; end it, or choose another folder or --name."
        ) from None
    lock.truncate(0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    lock.write(f"process {os.getpid()} on {socket.gethostname()} (since {since})\n")
    lock.flush()
    return lock


@contextmanager
def told_when_full(folder: Path) -> Iterator[None]:
    """Within it, files are written below a folder of checkpoints.

    Raises:
        RolloutError: when one of them could not be, because the disk is full; the newest whole checkpoint is kept.
    """
    try:
        yield
    except Exception as error:
        reason = disk_full(error)
        if reason is None:
            raise
        raise RolloutError(
            f"trainer.default_local_dir: a checkpoint cannot be written to {folder}: {reason}; {MAKE_ROOM}, or keep "
            "fewer checkpoints (trainer.max_actor_ckpt_to_keep, trainer.save_freq)."
        ) from error


def newest_whole(folder: Path) -> Path | None:
    """The newest complete checkpoint below a folder, `…/global_step_N`; None when there is none.

    The file that names it is empty when a run was killed while writing it; then it is the newest one with our mark.

    Raises:
        HierError: when the file holds something else than a number, and there is no marked checkpoint.
    """
    tracker = folder / TRACKER
    if not tracker.is_file():
        return None
    step = read_text(tracker, 100).strip()
    if re.fullmatch(r"[0-9]{1,15}", step):
        newest = folder / f"global_step_{step}"
        return newest if newest.is_dir() else None
    marked = [mark.parent for mark in folder.glob(f"global_step_*/{WHOLE}") if mark.parent.name[12:].isdecimal()]
    if not marked and step:
        raise HierError(f"{tracker} does not hold the number of a step but {step!r:.40}.")
    return max(marked, key=lambda path: int(path.name[12:]), default=None)


def mend_tracker(folder: Path) -> None:
    """Write the file that names the newest complete checkpoint anew, where a kill has left it empty."""
    tracker = folder / TRACKER
    if not tracker.is_file() or tracker.read_text(encoding="utf-8", errors="replace").strip().isdecimal():
        return
    newest = newest_whole(folder)
    if newest is None:
        tracker.unlink()
        return
    with atomic_write(tracker) as beside:
        beside.write_text(newest.name[12:], encoding="utf-8")


def mark_whole(checkpoint: Path) -> None:
    """Note that a checkpoint is complete, after verl has written its last file."""
    (checkpoint / WHOLE).touch()
