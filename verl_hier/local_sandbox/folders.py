"""Folders that a hostile script filled: how full they are, and how they are removed."""

from __future__ import annotations

import errno
import os
import stat
import time


def is_too_full(folder: str, size: int, most: int) -> bool:
    """Whether a folder holds more than `size` bytes or `most` files and folders; looks at no more than it must."""
    waiting = [folder]
    total = count = 0
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    held = entry.stat(follow_symlinks=False)
                    total, count = total + held.st_blocks * 512, count + 1
                    if count > most or total > size:
                        return True
                    if stat.S_ISDIR(held.st_mode):
                        waiting.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return True
            # Anything else is closed to the script as well, or gone since.
    return False


def remove(folder: str, limit_s: float = float("inf")) -> bool:
    """Remove a folder, however deep it is and whatever its modes say.

    It walks down by names and up by `..`, so no path is long, nothing is recursive, and one descriptor is open.

    Args:
        folder: the folder; one that is not there counts as removed.
        limit_s: seconds after which it stops.

    Returns:
        Whether the folder is gone.
    """
    deadline = time.monotonic() + limit_s
    try:
        here = _open(folder)
    except OSError:
        return not os.path.lexists(folder)
    # The folders from the top to here, and in each the folders that are not removed yet.
    names, waiting = [folder], [_without_files(here)]
    try:
        while names:
            if time.monotonic() > deadline:
                return False
            if waiting[-1]:
                names.append(waiting[-1].pop())
                here = _step(here, names[-1])
                waiting.append(_without_files(here))
                continue
            waiting.pop()
            name = names.pop()
            if names:
                here = _step(here, os.pardir)
                os.rmdir(name, dir_fd=here)
        os.rmdir(folder)
    except OSError:
        return False
    finally:
        os.close(here)
    return True


def _step(here: int, name: str) -> int:
    """Open a folder beside or in an open one, which is closed."""
    there = _open(name, here)
    os.close(here)
    return there


def _without_files(folder: int) -> list[str]:
    """Delete the files of an open folder; returns the names of the folders in it."""
    folders = []
    for name in os.listdir(folder):
        if _is_folder(name, folder):
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return folders


def _open(name: str, parent: int | None = None) -> int:
    """Open a folder after making it accessible to its owner. No link is followed to it, and nobody else is left to
    put one in its place."""
    if not _is_folder(name, parent):
        raise NotADirectoryError(name)
    os.chmod(name, stat.S_IRWXU, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


def _is_folder(name: str, parent: int | None) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
