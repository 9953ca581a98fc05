"""The isolation layers of a script: namespaces, a private root, a user of its own, Landlock, limits, seccomp, a hook.

This runs in the supervisor and in the script process of `runner`. Each layer is tried, and the names of those that
could be set up are `Outcome.layers`. Constants are the kernel's; system calls without a function in the C library are
made by number.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from verl_hier.local_sandbox import audit, syscalls
from verl_hier.local_sandbox.audit import HIDDEN

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 29, 1 << 30
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1 << 1, 1 << 2, 1 << 3, 1 << 12, 1 << 14, 1 << 18
MOUNT_RDONLY, MOUNT_NOSUID = 1, 2
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
# The same on every architecture, as all system calls since 5.1 are.
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
# A process's clock of user and system time, see clock_getcpuclockid(3).
CPUCLOCK_PROF, SIGEV_SIGNAL, TIMER_ABSTIME = 0, 0, 1
FIRST_UID = 0x70000000
NOBODY = 65534
SHARED = ("/usr/share/zoneinfo",)
"""What a script can read besides the standard library."""

MOST_FILES = 1024
"""Files and folders that a script may have."""

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
    readable = readable_paths()
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
    own = not {"user", "namespaces"}.isdisjoint(layers)
    processes = own and request["processes"] > 1
    if _attempt(syscalls.install, call, processes, rooted or "user" in layers):
        layers.append("seccomp")
    sys.addaudithook(audit.guard(processes, None if rooted else (work, *readable)))
    return [*layers, "audit"]


def _attempt(step: Callable[..., None], *arguments: Any) -> bool:
    try:
        step(*arguments)
    except OSError:
        return False
    return True


@functools.cache
def readable_paths() -> tuple[str, ...]:
    """The paths that a script has to read: Python's standard library.

    The C libraries that its modules need are loaded before, by `verl_hier.local_sandbox.runner`.
    """
    found = [path for path in dict.fromkeys((*sys.path, *SHARED)) if os.path.exists(path)]
    return tuple(p for p in found if not any(p.startswith(other + "/") for other in found))


def private_root(work: str, readable: Sequence[str], files_mb: int) -> None:
    """Replace the file system by one that holds `readable` (read-only) and an empty, small /tmp."""
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    call("mount", "tmpfs", work, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    try:
        os.mkdir(work + "/tmp")
        options = f"size={files_mb}m,nr_inodes={MOST_FILES},mode=777"
        call("mount", "tmpfs", work + "/tmp", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
        for path in (*readable, os.devnull):
            # Python may live below /tmp, too.
            target = work + path
            if os.path.isdir(path):
                os.makedirs(target, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_CREAT))
            call("mount", path, target, None, MS_BIND | MS_REC, None)
            for hidden in _hidden(path):
                call("mount", "tmpfs", work + hidden, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=555")
        _set_mount(work, AT_RECURSIVE, MOUNT_RDONLY | MOUNT_NOSUID, 0)
        _set_mount(work + "/tmp", 0, 0, MOUNT_RDONLY)
        os.chdir(work)
        # Mount the new root over the old one, which is then detached.
        call("pivot_root", ".", ".")
    except OSError:
        call("umount2", work, MNT_DETACH)
        os.chdir(work)
        raise
    call("umount2", ".", MNT_DETACH)
    os.chdir("/tmp")


def _set_mount(path: str, flags: int, added: int, removed: int) -> None:
    """Change the attributes of a mount, and with AT_RECURSIVE of those below it."""
    attributes = struct.pack("QQQQ", added, removed, 0, 0)
    call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, attributes, len(attributes))


def _hidden(path: str) -> list[str]:
    """The folders of installed packages in a folder of the standard library."""
    return [found for name in HIDDEN if os.path.isdir(found := os.path.join(path, name))]


def change_user(own: int, work: str, readable: Sequence[str], rooted: bool) -> bool:
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


def kill_user(uid: int) -> None:
    """Become a user that only scripts are, and kill all of its processes at once, also those that fork meanwhile."""
    with contextlib.suppress(OSError):
        os.setresuid(uid, uid, uid)
        os.kill(-1, signal.SIGKILL)


def _parents(path: str) -> list[str]:
    steps = path.strip("/").split("/")
    return ["/" + "/".join(steps[:count]) for count in range(1, len(steps) + 1)]


def drop_capabilities() -> None:
    """Give up the capabilities that a user namespace granted."""
    call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))


def landlock(work: str, readable: Sequence[str]) -> None:
    """Allow reading `readable` and writing `work` only; also no TCP and no signals to others on newer kernels."""
    version = call("syscall", SYS_LANDLOCK_CREATE, None, 0, 1)
    everything = (1 << {1: 13, 2: 14}.get(version, 15)) - 1
    # Rights on files, on TCP (bind, connect), and the scope of abstract sockets and signals; an older kernel takes the
    # shorter struct that it knows.
    known = 3 if version >= 6 else 2 if version >= 4 else 1
    rules = struct.pack(f"{known}Q", *(everything, 3, 3)[:known])
    handle = call("syscall", SYS_LANDLOCK_CREATE, rules, len(rules), 0)
    for path, rights in (*_readable_rights(tuple(readable)), (work, everything), (os.devnull, 6)):
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call("syscall", SYS_LANDLOCK_ADD, handle, 1, struct.pack("=Qi", rights, opened), 0)
        os.close(opened)
    call("syscall", SYS_LANDLOCK_RESTRICT, handle, 0)
    os.close(handle)


@functools.cache
def _readable_rights(readable: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Landlock's rights that make `readable` readable without the installed packages in it; their names can be listed.

    Rights hold for everything below a path, so a folder with packages is granted entry by entry.
    """
    # Bits 2 and 3: read a file, list a directory. The second does not apply to files.
    rights: list[tuple[str, int]] = []
    for path in readable:
        entries = [path]
        if _hidden(path):
            rights.append((path, 8))
            entries = [os.path.join(path, name) for name in os.listdir(path) if name not in HIDDEN]
        rights += [(entry, 12 if os.path.isdir(entry) else 4) for entry in entries]
    return tuple(rights)


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
        "RLIMIT_AS": memory,
        "RLIMIT_NPROC": counted,
        "RLIMIT_FSIZE": file,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
    }
    for name, value in wanted.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    # The soft limit ends a script; the hard one ends it where it ignores that, so late that the supervisor knows why.
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"] + 1))
