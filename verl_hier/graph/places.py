"""Stores on file systems other than the local ones: `s3://bucket/folder`, `gs://…`, and every other that fsspec knows.

The rest of the package goes on with `pathlib`: a `RemotePath` answers what a `Path` does, as far as stores need it.
Whatever goes wrong is an `OSError` that names the place, as on a disk.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path, PosixPath
from typing import Any

from verl_hier.errors import first_line

# `pathlib` makes one slash of the two in a URL.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
_LOCAL = ("file", "local")
_CHANGED = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What file systems call the time of the last change."""


def place(named: str | os.PathLike[str]) -> Path:
    """The path of a file or folder; a `RemotePath` for a URL, unless it is that of a local file."""
    found = _URL.fullmatch(os.fspath(named))
    if found is None:
        return Path(named)
    return Path(f"/{found[2]}") if found[1] in _LOCAL else RemotePath(named)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it.

    Raises:
        OSError: when the file system refuses.
    """
    if isinstance(folder, RemotePath):
        folder.remove()
    else:
        shutil.rmtree(folder)


class RemotePath(PosixPath):
    """A file or a folder that is reached through fsspec; what only a local file has is not to be asked for."""

    _known: dict[str, Any] | None = None
    """What the list of its folder said of it."""

    def __str__(self) -> str:
        protocol, _, rest = super().__str__().partition(":")
        return f"{protocol}://{rest.lstrip('/')}"

    def __fspath__(self) -> str:
        return str(self)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        with _as_of_a_disk(self):
            system, name = _reached(str(self))
            return getattr(system, method)(name, *args, **options)

    def _info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._known or self._call("info")
        return found

    def _kind(self) -> str | None:
        try:
            return str(self._info()["type"])
        except FileNotFoundError:
            return None

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._kind() is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._kind() == "directory"

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._kind() == "file"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Kind, size and time of the last change."""
        info = self._info()
        when = next((info[name] for name in _CHANGED if info.get(name) is not None), 0)
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        seconds = when.timestamp() if isinstance(when, datetime) else float(when)
        mode = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        size, whole = int(info.get("size") or 0), int(seconds)
        return os.stat_result((mode, 0, 0, 1, 0, 0, size, whole, whole, whole), {"st_mtime_ns": int(seconds * 1e9)})

    def iterdir(self) -> Generator[RemotePath, None, None]:
        own = self.name
        for info in self._call("ls", detail=True):
            name = info["name"].rstrip("/").rpartition("/")[2]
            if name and not (name == own and info["type"] == "directory" and not self._below(info["name"])):
                entry = self / name
                entry._known = info
                yield entry

    def _below(self, name: str) -> bool:
        """Whether a name in the file system is not that of the folder itself, which some list too."""
        return name.strip("/").count("/") > str(self).partition("://")[2].strip("/").count("/")

    def glob(self, pattern: str, **_: Any) -> Generator[RemotePath, None, None]:  # type: ignore[override]
        """The entries of the folder whose names fit a pattern; folders below are not looked at."""
        if self.is_dir():
            yield from (entry for entry in self.iterdir() if fnmatch(entry.name, pattern))

    def open(self, mode: str = "r", *_: Any, **options: Any) -> Any:  # type: ignore[override]
        """The file, to read it."""
        return self._call("open", mode, **{name: value for name, value in options.items() if value is not None})

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._call("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        self._call("rm", recursive=True)

    def lstat(self) -> os.stat_result:
        return self.stat()

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def absolute(self) -> RemotePath:
        return self

    @contextmanager
    def written(self) -> Iterator[Path]:
        """A local path to write to, whose file is sent here when the block ends.

        Stores of objects show an object when it is complete; no file system here has to be able to rename.
        """
        with tempfile.TemporaryDirectory(prefix="verl-hier-") as folder:
            beside = Path(folder) / self.name
            yield beside
            with _as_of_a_disk(self):
                system, name = _reached(str(self))
                system.put_file(str(beside), name)


def _of_a_disk_alone(method: str) -> Any:
    def refused(self: RemotePath, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOTSUP, f"a place on another machine has no {method}()", str(self))

    return refused


for _method in (
    "chmod", "group", "hardlink_to", "is_mount", "lchmod", "link_to", "mkdir", "owner", "readlink", "rename", "replace",
    "rglob", "rmdir", "samefile", "symlink_to", "touch", "walk",
):  # fmt: skip
    # `pathlib` would look for a file of that name on this machine, or make one.
    setattr(RemotePath, _method, _of_a_disk_alone(_method))


@contextmanager
def _as_of_a_disk(path: RemotePath) -> Iterator[None]:
    """Every error of a file system as an `OSError` with a reason and the place."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except ImportError as error:
        missing = f"a package for its file system is missing ({first_line(error)})"
        raise OSError(errno.ENOSYS, missing, str(path)) from error
    except Exception as error:  # each file system raises errors of its own
        raise OSError(errno.EIO, f"its file system refuses ({first_line(error)})", str(path)) from error


def _reached(url: str) -> tuple[Any, str]:
    """A file system and the name of a URL in it: fsspec's, or pyarrow's own for S3 and Google where the package that
    fsspec wants is not installed."""
    import fsspec

    try:
        system, name = fsspec.core.url_to_fs(url)
        system.invalidate_cache()  # other processes write there too
        return system, name
    except ImportError:
        protocol, _, name = url.partition("://")
        if protocol not in ("s3", "gs", "gcs"):
            raise
    return _of_pyarrow(protocol == "s3"), name


@lru_cache
def _of_pyarrow(amazon: bool) -> Any:
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow import fs

    # The defaults are to try for a quarter of an hour.
    return ArrowFSWrapper(
        fs.S3FileSystem(connect_timeout=10) if amazon else fs.GcsFileSystem(retry_time_limit=timedelta(seconds=20))
    )
