"""An audit hook (PEP 578) for scripts: clear sentences before the kernel's refusals."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

HIDDEN = ("site-packages", "dist-packages")
"""Folders of the standard library that a script cannot read: installed packages may hold a task's answers."""

PROCESS_EVENTS = frozenset(
    (
        *(
            "os.fork",
            "os.forkpty",
            "os.posix_spawn",
            "os.spawn",
            "os.system",
            "os.exec",
            "pty.spawn",
            "subprocess.Popen",
        ),
        *("_thread.start_new_thread", "_thread.start_joinable_thread"),
    )
)
OTHERS_EVENTS = frozenset(("os.kill", "os.killpg", "resource.prlimit"))
TOOLS = frozenset(
    (
        *("ctypes", "_ctypes", "_ctypes_test", "_testcapi", "_testinternalcapi", "_testlimitedcapi"),
        *("_xxsubinterpreters", "_interpreters"),
    )
)
"""Modules that reach around the interpreter."""

FILE_EVENTS = frozenset(
    (
        *("open", "os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.chmod", "os.chown"),
        *("os.truncate", "os.listdir", "os.scandir", "os.utime", "os.setxattr", "os.removexattr", "os.chdir"),
    )
)


def guard(processes: bool, paths: tuple[str, ...] | None) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook that refuses network, ctypes and, depending on the arguments, processes and files.

    This is no wall: a script can get past it in several ways. It answers honest mistakes with a clear sentence, where
    the kernel would only say that something is not permitted.

    Args:
        processes: whether the script may start threads and processes.
        paths: where files may be accessed; None leaves that to the private root.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith("socket."):
            raise PermissionError("the sandbox has no network")
        if event.startswith("ctypes."):
            raise PermissionError("the sandbox has no ctypes")
        if event == "import" and (name := arguments[0].rpartition(".")[2]) in TOOLS:
            raise PermissionError(f"the sandbox has no {name.removeprefix('_')}")
        if event in OTHERS_EVENTS or (event in PROCESS_EVENTS and not processes):
            raise PermissionError("the sandbox has no other processes")
        if event == "cpython.PyInterpreterState_New":
            raise PermissionError("the sandbox has no further interpreters")
        if paths is not None and event in FILE_EVENTS:
            for name in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                if isinstance(name, (str, bytes)) and not _below(os.fsdecode(name), paths):
                    raise PermissionError("the sandbox has no files outside of its directory")

    return hook


def _below(name: str, paths: tuple[str, ...]) -> bool:
    path = os.path.realpath(name)
    if not set(HIDDEN).isdisjoint(path.split("/")):
        return False
    return path == os.devnull or any(path == p or path.startswith(p + "/") for p in map(os.path.realpath, paths))
