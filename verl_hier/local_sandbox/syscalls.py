"""A seccomp filter (BPF) that lets a script make only the system calls that Python needs for itself.

The kernel checks every system call of the script and of all that it starts against this list, whatever code makes it.
What is not listed is refused: sockets, other processes' limits, priorities and memory, signals to others, namespaces,
mounts, new programs, keys, and the kinds of memory that no limit counts. An ordinary user may install such a filter.
Numbers and constants are the kernel's. On a processor architecture without a table here there is no filter.
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""For each machine: how the kernel names it, and its column in `_TABLE`."""

# Name, number on x86-64, number on arm64 (- where it does not exist there).
_TABLE = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
ioctl 16 29, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -,
sched_yield 24 124, mremap 25 216, msync 26 227, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendfile 40 71, clone 56 220, fork 57 -, vfork 58 -,
exit 60 93, wait4 61 260, kill 62 129, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83,
truncate 76 45, ftruncate 77 46, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, mkdir 83 -, rmdir 84 -,
link 86 -, unlink 87 -, symlink 88 -, readlink 89 -, chmod 90 -, fchmod 91 52, umask 95 166, gettimeofday 96 169,
getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175,
getegid 108 177, setpgid 109 154, getppid 110 173, getpgrp 111 -, setsid 112 157, getgroups 115 158,
getresuid 118 148, getresgid 120 150, getpgid 121 155, getsid 124 156, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132, utime 132 -, statfs 137 43, fstatfs 138 44, setrlimit 160 164,
prctl 157 167, gettid 186 178, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, getxattr 191 8, lgetxattr 192 9,
fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13, removexattr 197 14, lremovexattr 198 15,
fremovexattr 199 16, tkill 200 130, time 201 -, futex 202 98, sched_getaffinity 204 123, epoll_create 213 -,
getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128, fadvise64 221 223, clock_gettime 228 113,
clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -, epoll_ctl 233 21,
tgkill 234 131, utimes 235 -, waitid 247 95, openat 257 56, mkdirat 258 34, futimesat 261 -, newfstatat 262 79,
unlinkat 263 35, renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78, fchmodat 268 53,
faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99, get_robust_list 274 100, utimensat 280 88,
epoll_pwait 281 22, fallocate 285 47, eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59, preadv 295 69,
pwritev 296 70, prlimit64 302 261, getcpu 309 168, renameat2 316 276, getrandom 318 278, copy_file_range 326 285,
preadv2 327 286, pwritev2 328 287, statx 332 291, rseq 334 293, close_range 436 436, faccessat2 439 439,
epoll_pwait2 441 441
"""
FIRST_COMMON = 424
"""From this number on all machines have the same numbers. These calls are young, so that a C library that is refused
one as unknown takes an older one."""

NEW_PROCESSES = frozenset(("clone", "fork", "vfork"))
PROCESS_GROUPS = frozenset(("setsid", "setpgid"))
FILE_ATTRIBUTES = frozenset(("chmod", "fchmod", "fchmodat", "utime", "utimes", "futimesat", "utimensat", "truncate"))
"""Calls that change a file of the script's user without opening it for writing, which Landlock does not refuse."""

EXTENDED_ATTRIBUTES = frozenset(
    prefix + verb + "xattr" for prefix in ("", "l", "f") for verb in ("get", "set", "list", "remove")
)

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
NUMBER, ARCHITECTURE = 0, 4
"""Places of the call's number and the machine's name in what a filter reads; arguments follow from 16 on."""
X32 = 0x40000000
"""First number of a second set of calls that x86-64 kernels may have."""
WORD = 0xFFFFFFFF
ENOTSUP = 95

OWN_PROCESS = 0x7FFFFFFE
"""Stands for the number of the script's own process, which no process has."""

# CLONE_NEW* for all kinds of namespaces, CLONE_PARENT and CLONE_PTRACE.
FORBIDDEN_CLONE_FLAGS = 0x7E02A000
ACCESS_AND_TRUNCATE = 0o1003
# Every mode but O_RDONLY | O_TRUNC, which empties files that Landlock lets a script read (below ABI 3).
OPEN_MODES = (0o0, 0o1, 0o2, 0o1001, 0o1002)
# TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
IOCTLS = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
# Descriptor and status flags, record locks, and F_GETPIPE_SZ; not the owner of a signal, leases, or larger pipes.
FCNTLS = (*range(8), 36, 37, 38, 1030, 1032)
# PR_SET_NAME, PR_GET_NAME.
PRCTLS = (15, 16)


@dataclass(frozen=True)
class Condition:
    """A call is allowed if `argument & mask` is one of `values`; 32 bits of the argument are looked at."""

    argument: int
    values: tuple[int, ...]
    mask: int = WORD


CONDITIONS = {
    **dict.fromkeys(("kill", "tkill", "tgkill"), Condition(0, (OWN_PROCESS,))),
    "clone": Condition(0, (0,), FORBIDDEN_CLONE_FLAGS),
    "prlimit64": Condition(0, (0,)),
    "ioctl": Condition(1, IOCTLS),
    "fcntl": Condition(1, FCNTLS),
    "prctl": Condition(0, PRCTLS),
    "open": Condition(1, OPEN_MODES, ACCESS_AND_TRUNCATE),
    "openat": Condition(2, OPEN_MODES, ACCESS_AND_TRUNCATE),
}
"""Calls that are allowed with some arguments."""


def install(call: Callable[..., int], processes: bool, attributes: bool) -> None:
    """Install the filter in this process, for good. It needs `PR_SET_NO_NEW_PRIVS` or root.

    Args:
        call: calls a function of the C library, see `isolation.call`.
        processes: whether processes and threads may be started; the limit on their number is another one.
        attributes: whether modes, times and lengths of files may be changed by path.

    Raises:
        OSError: when this machine has no filter.
    """
    import ctypes

    code = program(processes, attributes).replace(struct.pack("I", OWN_PROCESS), struct.pack("I", os.getpid()))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0)


@functools.cache
def program(processes: bool, attributes: bool) -> bytes:
    """The filter as the kernel's instructions, with `OWN_PROCESS` for the process that may send itself signals.

    Args:
        processes: see `install`.
        attributes: see `install`.

    Raises:
        OSError: on a machine without a table.
    """
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, "no table of system calls for this machine")
    name, column = ARCHITECTURES[platform.machine()]
    numbers = call_numbers(column)
    refused: dict[str, int] = dict.fromkeys(EXTENDED_ATTRIBUTES, ENOTSUP)
    if not processes:
        refused |= dict.fromkeys(NEW_PROCESSES, errno.EAGAIN) | dict.fromkeys(PROCESS_GROUPS, errno.EPERM)
    if not attributes:
        refused |= dict.fromkeys(FILE_ATTRIBUTES, errno.EPERM)
    lines = [_jump(LOAD, ARCHITECTURE), _jump(EQUAL, name, 1, 0), _jump(RETURN, KILL)]
    lines += [_jump(LOAD, NUMBER), _jump(AT_LEAST, X32, 0, 1), _jump(RETURN, REFUSE | errno.ENOSYS)]
    for call, number in numbers.items():
        if call in refused:
            block = [_jump(RETURN, REFUSE | refused[call])]
        elif call in CONDITIONS:
            block = _checked(CONDITIONS[call])
        else:
            block = [_jump(RETURN, ALLOW)]
        lines += [_jump(EQUAL, number, 0, len(block)), *block]
    lines += [_jump(AT_LEAST, FIRST_COMMON, 0, 1), _jump(RETURN, REFUSE | errno.ENOSYS)]
    return b"".join([*lines, _jump(RETURN, REFUSE | errno.EPERM)])


def call_numbers(column: int) -> dict[str, int]:
    """The numbers of the listed calls on one kind of machine."""
    rows = (entry.split() for entry in _TABLE.replace("\n", " ").split(","))
    return {name: int(known[column]) for name, *known in rows if known[column] != "-"}


def _checked(condition: Condition) -> list[bytes]:
    """Allow the call if its argument is one of the values."""
    lines = [_jump(LOAD, 16 + 8 * condition.argument)]
    if condition.mask != WORD:
        lines.append(_jump(AND, condition.mask))
    count = len(condition.values)
    lines += [_jump(EQUAL, value, count - place, 0) for place, value in enumerate(condition.values)]
    return [*lines, _jump(RETURN, REFUSE | errno.EPERM), _jump(RETURN, ALLOW)]


def _jump(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction: what to do, with which number, and how many instructions to skip by the result."""
    return struct.pack("HBBI", code, if_true, if_false, value)
