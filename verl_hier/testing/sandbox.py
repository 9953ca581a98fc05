"""Contract of a sandbox: what every provider of `hier.sandbox.provider` has to do. Call it from your own tests:

check_sandbox(MySandbox())
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

from verl_hier.sandbox.provider import Kind, Outcome, Promise, SandboxLimits, SandboxProvider

SHORT = SandboxLimits(cpu_s=1, wall_s=10, memory_mb=256)
ENDS: tuple[tuple[str, Kind], ...] = (
    ("print(6 * 7)", "ok"),
    ("1 / 0", "error"),
    ("def f(:", "error"),
    ("raise SystemExit(3)", "error"),
    ("while True: pass", "timeout"),
    ("x = bytearray(10**9)", "memory"),
    ("print('x' * 10**6)", "output"),
)
"""Scripts, and how they end."""

FORBIDDEN: dict[Promise, tuple[str, ...]] = {
    "network": (
        "import socket\ns = socket.create_connection(('127.0.0.1', {port}), 2)",
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', {port}))",
    ),
    "files": ("print(open({file!r}).read())", "open({file!r}, 'a').write('x')", "import os\nos.chmod({file!r}, 0)"),
    "processes": (
        "import os\nos.kill({pid}, 0)",
        "import resource\nresource.prlimit({pid}, resource.RLIMIT_CPU, (10**6, 10**6))",
        "import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    ),
    "memory": ("import os\nfile = os.memfd_create('x')\nos.write(file, b'x')",),
}
"""Scripts that a promise makes fail. `{file}` is a file of this user, `{port}` listens, `{pid}` is this process."""


def check_sandbox(sandbox: SandboxProvider, file: str, port: int, pid: int) -> None:
    """Run scripts in a sandbox and fail with a sentence where it breaks its contract or one of its promises.

    Args:
        sandbox: the provider.
        file: path of a file that a script must not read or change.
        port: a port of 127.0.0.1 that listens for TCP and UDP.
        pid: a process that a script must not reach.

    Raises:
        AssertionError: with a sentence about what is wrong.
    """
    for code, kind in ENDS:
        began = time.monotonic()
        outcome = sandbox.run_python(code, SHORT)
        assert outcome.kind == kind, f"{code!r} ended with {outcome.kind!r} instead of {kind!r}: {outcome}"
        assert time.monotonic() - began < 2 * SHORT.wall_s + 20, f"{code!r} took much longer than its limits"
        assert len(outcome.stdout) + len(outcome.stderr) <= SHORT.output_bytes, f"{code!r}: more output than the limit"
    _check_streams(sandbox)
    promises = sandbox.promises()
    assert promises <= set(get_args(Promise)), f"unknown promises: {sorted(promises)}"
    for promise in promises:
        for script in FORBIDDEN[promise]:
            code = script.format(file=file, port=port, pid=pid)
            outcome = sandbox.run_python(code, SHORT)
            assert outcome.kind == "error", f"it promises to protect {promise}, but this ran: {code!r}"


def _check_streams(sandbox: SandboxProvider) -> None:
    """Output, exit status, echo, a fresh start each time, and calls from several threads."""
    outcome = sandbox.run_python("import sys\nprint('out')\nsys.stderr.write('no\\n')\nsys.exit(3)")
    assert (outcome.stdout, outcome.stderr, outcome.status) == ("out\n", "no\n", 3), f"streams or status: {outcome}"
    assert sandbox.run_python("6 * 7", echo=True).stdout == "42\n", "`echo` does not print the last expression"
    left = "import os\nprint(os.listdir())\nopen('left', 'w').close()"
    for _ in range(2):
        assert sandbox.run_python(left).stdout == "[]\n", "a script finds files of the one before"

    def square(number: int) -> Outcome:
        return sandbox.run_python(f"print({number} ** 2)")

    with ThreadPoolExecutor(4) as threads:
        squares = [int(outcome.stdout) for outcome in threads.map(square, range(8))]
    assert squares == [number**2 for number in range(8)], "calls from several threads mix their outputs"
