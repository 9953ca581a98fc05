"""The isolation layers of a script: namespaces, a private root, a user of its own, Landlock, limits, an audit hook.

This runs in the supervisor and in the script process of `verl_hier.sandbox.runner`. Each layer is tried, and the names
of those that could be set up are `Outcome.layers`. Constants are the kernel's; system calls without a function in the C
library are made by number.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 29, 1 << 30
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1 << 1, 1 << 2, 1 << 12, 1 << 14, 1 << 18
MOUNT_RDONLY, MOUNT_NOSUID = 1, 2
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
# The same on every architecture, as all system calls since 5.1 are.
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
# A process's clock of user and system time, see clock_getcpuclockid(3).
CPUCLOCK_PROF, SIGEV_SIGNAL, TIMER_ABSTIME = 0, 0, 1
FIRST_UID = 0x70000000
NOBODY = 65534
SHARED = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
_libc = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: Any) -> int:
    """Call a function of the C library; raises OSError when it returns a negative number."""
    if not hasattr(_libc, function):
        raise OSError(f"no {function} on this system")
    coded = [a.encode() if isinstance(a, str) else a for a in arguments]
    coded = [ctypes.c_long(a) if isinstance(a, int) else a for a in coded]
    result: int = getattr(_libc, function)(*coded)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return result


def unshare() -> bool:
    """Enter new namespaces (processes, network, mounts, IPC), through a user namespace where that is needed."""
    flags = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC
    uid, gid = os.geteuid(), os.getegid()
    for extra in (0, CLONE_NEWUSER):
        try:
            call("unshare", flags | extra)
        except OSError:
            continue
        if extra:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        return True
    return False


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def start_cpu_timer(pid: int, seconds: int, number: int) -> bool:
    """Have the kernel send this process a signal when another process has used its processor time.

    `RLIMIT_CPU` reads the same clock, so the signal is sent no later than that limit kills the process.

    Returns:
        Whether the timer runs; False where the kernel has no such timers.
    """
    if sys.platform != "linux":
        return False
    timer = ctypes.c_void_p()
    try:
        event = struct.pack("Pii48x", 0, number, SIGEV_SIGNAL)
        call("timer_create", (~pid << 3) | CPUCLOCK_PROF, event, ctypes.byref(timer))
        call("timer_settime", timer, TIMER_ABSTIME, struct.pack("4l", 0, 0, seconds, 0), None)
    except OSError:
        return False
    return True


def set_up(request: dict[str, Any], isolated: bool) -> list[str]:
    """Set up every layer that this machine permits, in an order in which each step is still allowed.

    Args:
        request: the limits, and `uid`, a user id that nobody else has.
        isolated: whether this process is the first one in new namespaces.

    Returns:
        Names of the active layers.
    """
    layers = ["namespaces"] if isolated else []
    readable = _readable()
    work = os.getcwd()
    rooted = isolated and _attempt(private_root, work, readable, request["files_mb"])
    if rooted:
        layers.append("private_root")
        work = "/tmp"
    if os.geteuid() == 0 and change_user(request["uid"], work, readable, rooted):
        layers.append("user")
    if sys.platform == "linux":
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # If the supervisor is killed, the script is killed as well.
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        drop_capabilities()
        if not rooted and _attempt(landlock, work, readable):
            layers.append("landlock")
    os.environ["HOME"] = work
    limit(request, layers)
    sys.addaudithook(guard(request["processes"] > 1, None if rooted else (work, *readable)))
    return [*layers, "audit"]


def _attempt(step: Callable[..., None], *arguments: Any) -> bool:
    try:
        step(*arguments)
    except OSError:
        return False
    return True


def _readable() -> list[str]:
    """The paths that an interpreter has to read: its own library and the shared libraries that it is linked with."""
    paths = [*sys.path, os.path.join(sys.base_prefix, "lib"), *SHARED]
    found = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    return [p for p in found if not any(p.startswith(other + "/") for other in found)]


def private_root(work: str, readable: list[str], files_mb: int) -> None:
    """Replace the file system by one that holds `readable` (read-only) and an empty, small /tmp."""
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    call("mount", "tmpfs", work, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    try:
        for path in (*readable, os.devnull):
            target = work + path
            if os.path.isdir(path):
                os.makedirs(target, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_CREAT))
            call("mount", path, target, None, MS_BIND | MS_REC, None)
        os.mkdir(work + "/tmp")
        read_only = struct.pack("QQQQ", MOUNT_RDONLY | MOUNT_NOSUID, 0, 0, 0)
        call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, work, AT_RECURSIVE, read_only, len(read_only))
        options = f"size={files_mb}m,nr_inodes=1024,mode=777"
        call("mount", "tmpfs", work + "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options)
        os.chdir(work)
        # Mount the new root over the old one, which is then detached.
        call("pivot_root", ".", ".")
    except OSError:
        call("umount2", work, MNT_DETACH)
        os.chdir(work)
        raise
    call("umount2", ".", MNT_DETACH)
    os.chdir("/tmp")


def change_user(own: int, work: str, readable: list[str], rooted: bool) -> bool:
    """Become a user that nobody else is: the limit on processes then counts, and root's rights are gone.

    Returns:
        Whether that was possible; False only with a private root.

    Raises:
        RuntimeError: without a private root, when the user cannot be changed or could not read Python's library.
    """
    if not rooted:
        closed = next((path for path in _parents(readable[0]) if not os.stat(path).st_mode & 0o001), None)
        if closed is not None:
            raise RuntimeError(
                f"a script must not run as root, and an ordinary user cannot read Python below {closed}; "
                "run as an ordinary user, or where namespaces are allowed"
            )
    for uid in (own, NOBODY):
        try:
            if not rooted:
                os.chown(work, uid, uid)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return True
        except OSError:
            continue
    if not rooted:
        raise RuntimeError("a script must not run as root, and root cannot become another user here")
    return False


def _parents(path: str) -> list[str]:
    steps = path.strip("/").split("/")
    return ["/" + "/".join(steps[:count]) for count in range(1, len(steps) + 1)]


def drop_capabilities() -> None:
    """Give up the capabilities that a user namespace granted."""
    call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))


def landlock(work: str, readable: list[str]) -> None:
    """Allow reading `readable` and writing `work` only; also no TCP and no signals to others on newer kernels."""
    version = call("syscall", SYS_LANDLOCK_CREATE, None, 0, 1)
    everything = (1 << {1: 13, 2: 14}.get(version, 15)) - 1
    # Rights on files, on TCP (bind, connect), and the scope of abstract sockets and signals; an older kernel takes the
    # shorter struct that it knows.
    known = 3 if version >= 6 else 2 if version >= 4 else 1
    rules = struct.pack(f"{known}Q", *(everything, 3, 3)[:known])
    handle = call("syscall", SYS_LANDLOCK_CREATE, rules, len(rules), 0)
    # Bits 0, 2, 3: execute, read a file, list a directory. The last does not apply to files.
    grants = [(work, everything), *((path, 13 if os.path.isdir(path) else 4) for path in readable)]
    grants.append((os.devnull, 6))
    for path, rights in grants:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call("syscall", SYS_LANDLOCK_ADD, handle, 1, struct.pack("=Qi", rights, opened), 0)
        os.close(opened)
    call("syscall", SYS_LANDLOCK_RESTRICT, handle, 0)
    os.close(handle)


def limit(request: dict[str, Any], layers: list[str]) -> None:
    """Set hard limits, which cannot be raised again."""
    memory, file = request["memory_mb"] << 20, request["files_mb"] << 20
    # The limit counts the processes of a user: in a user namespace the supervisor too, and without either layer all
    # that the user runs on the machine, so there a script that may start processes would depend on the others.
    counted = 1
    if "user" in layers:
        counted = request["processes"]
    elif "namespaces" in layers:
        counted = request["processes"] + 1
    wanted = {
        "RLIMIT_CPU": request["cpu_s"],
        "RLIMIT_AS": memory,
        "RLIMIT_NPROC": counted,
        "RLIMIT_FSIZE": file,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
    }
    for name, value in wanted.items():
        resource.setrlimit(getattr(resource, name), (value, value))


PROCESS_EVENTS = {
    *("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "pty.spawn", "subprocess.Popen"),
    *("_thread.start_new_thread", "_thread.start_joinable_thread"),
}
FILE_EVENTS = {
    *("open", "os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.chmod", "os.chown"),
    *("os.truncate", "os.listdir", "os.scandir", "os.utime", "os.setxattr", "os.removexattr", "os.chdir"),
}


def guard(processes: bool, paths: tuple[str, ...] | None) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook (PEP 578) that refuses network, ctypes and, depending on the arguments, processes and files.

    This is no security boundary: a script that corrupts the interpreter gets past it. It answers honest mistakes with
    a clear sentence.

    Args:
        processes: whether the script may start threads and processes.
        paths: where files may be accessed; None leaves that to the private root.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith("socket."):
            raise PermissionError("the sandbox has no network")
        if event.startswith("ctypes.") or (event == "import" and arguments[0] in ("ctypes", "_ctypes")):
            raise PermissionError("the sandbox has no ctypes")
        if event in ("os.kill", "os.killpg") or (event in PROCESS_EVENTS and not processes):
            raise PermissionError("the sandbox has no other processes")
        if paths is not None and event in FILE_EVENTS:
            for name in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                if isinstance(name, (str, bytes)) and not _below(os.fsdecode(name), paths):
                    raise PermissionError("the sandbox has no files outside of its directory")

    return hook


def _below(name: str, paths: tuple[str, ...]) -> bool:
    path = os.path.realpath(name)
    return path == os.devnull or any(path == p or path.startswith(p + "/") for p in map(os.path.realpath, paths))
