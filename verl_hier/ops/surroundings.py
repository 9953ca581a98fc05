"""What a run finds around it, looked at before Ray starts: folders that it writes to, and room for Ray's sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hier.errors import HierError, refusal
from verl_hier.recipe.cluster import joins_cluster

if TYPE_CHECKING:
    from omegaconf import DictConfig

LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket: `sun_path` of unix(7) has 108 with the zero at its end."""
LONGEST_NAME = 255
"""Bytes of the name of a file or folder on the usual file systems."""
_SESSION = "session_2026-01-01_00-00-00_000000_"
"""What Ray calls the folder of a session, before the number of the process (`ray/_private/node.py`)."""
_SOCKET = "/sockets/plasma_store"
"""The longest of the sockets that Ray makes in it."""


def require_surroundings(config: DictConfig, run: Path) -> None:
    """Refuse what would end a run at its start, or at its first checkpoint.

    Args:
        config: the composed recipe, in which the run's files have their places.
        run: the run's folder.

    Raises:
        HierError: naming the line or the variable to change.
    """
    for line, folder in _written(config, run):
        require_writable(folder, line)
    if not joins_cluster(config):
        require_sockets(_temporary(config))


def require_writable(folder: Path, line: str) -> None:
    """Refuse a folder that cannot be made or written to; nothing is left there.

    Raises:
        HierError: naming the line and the reason.
    """
    long = next((part for part in folder.parts if len(os.fsencode(part)) > LONGEST_NAME), None)
    if long is not None:
        raise HierError(
            f"{line}: a name of {len(os.fsencode(long))} bytes, {long[:30]}…, is longer than {LONGEST_NAME}."
        )
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        what = "a link that leads nowhere" if place.is_symlink() and not place.exists() else "no folder"
        raise HierError(f"{line}: {folder} cannot be made, since {place} is {what}; name another folder.")
    try:
        with tempfile.TemporaryDirectory(prefix=".verl-hier-", dir=place):
            pass
    except OSError as error:
        raise HierError(f"{line}: {place} cannot be written to: {refusal(error)}; name another folder.") from error


def require_sockets(temporary: tuple[str, str]) -> None:
    """Refuse a temporary folder below which the sockets of Ray have too long paths.

    Args:
        temporary: what names the folder, and the folder below which Ray makes that of its session.

    Raises:
        HierError: naming what to change, and how long the path may be.
    """
    line, folder = temporary
    require_writable(Path(folder), line)
    try:
        digits = len(Path("/proc/sys/kernel/pid_max").read_text().strip())
    except OSError:
        digits = 7
    beside = 1 + len(_SESSION) + digits + len(_SOCKET)
    longest = len(os.fsencode(folder)) + beside
    if longest > LONGEST_SOCKET:
        raise HierError(
            f"{line}: the sockets that Ray makes below {folder} would have paths of {longest} bytes, and the system "
            f"takes {LONGEST_SOCKET}; name a folder of at most {LONGEST_SOCKET - beside - len('/ray')} bytes, as with "
            "RAY_TMPDIR=/tmp."
        )


def _written(config: Any, run: Path) -> Iterator[tuple[str, Path]]:
    yield "the folder of the run", run
    places = {
        "trainer.default_local_dir": config.trainer.default_local_dir,
        "hier.store.path": config.hier.store.get("path"),
    }
    for line, place in places.items():
        if place and "://" not in str(place):
            yield line, Path(str(place)).expanduser()


def _temporary(config: Any) -> tuple[str, str]:
    """The folder of Ray's sessions as Ray chooses it, and what to change for another one."""
    given = config.ray_kwargs.get("ray_init", {}).get("_temp_dir")
    if given:
        return "ray_kwargs.ray_init._temp_dir", str(given)
    for name in ("RAY_TMPDIR", "TMPDIR"):
        if name in os.environ:
            return name, os.path.join(os.environ[name], "ray")
    return "RAY_TMPDIR", "/tmp/ray"
