"""Attack the sandbox for model-written Python on this machine and say what held.

    python scripts/redteam.py                     # every probe in every configuration that this machine can make
    python scripts/redteam.py --only kernel       # one kind of probe
    python scripts/redteam.py --write             # also docs/security.json, from which SECURITY.md has its table

The configurations are root with all layers (A), root without namespaces (B), an ordinary user with namespaces (C) and
without (D). The probes are in tests/fixtures/probes.py. Whether one broke out is judged by what it prints, and by what
it leaves on a file, a process and listening sockets of the same user. Exit code 1 when anything did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fixtures.probes import Probe, probes  # noqa: E402
from verl_hier.local_sandbox import isolation, local  # noqa: E402
from verl_hier.local_sandbox.local import LocalSandbox, promises_of  # noqa: E402
from verl_hier.sandbox.provider import Outcome, SandboxError, SandboxLimits  # noqa: E402

CONFIGURATIONS = {
    "A": "root, all layers",
    "B": "root, no namespaces",
    "C": "ordinary user, namespaces",
    "D": "ordinary user, no namespaces",
}
STRANGER = 54321
"""The ordinary user; nothing else runs as this one."""

PLAIN_PYTHON = "/usr/bin/python3"
BARE = (
    "from verl_hier.local_sandbox import audit, script; audit.guard = lambda *_: lambda *_: None; "
    "script.OWN_NAMES = ('verl_hier',); main()"
)
"""What a sandbox does instead of `main()` so that its scripts have no audit hook, and ctypes."""

FILES_MB = 4
SLACK_S = 1.0
"""Seconds that a busy machine may take to start and end a script, beyond its limit."""


class Scene:
    """What a script may hurt, of the same user as the sandbox: a process, a file, and listening sockets."""

    def __init__(self) -> None:
        self.secret = os.urandom(12).hex()
        self.folder = Path(tempfile.mkdtemp(prefix="redteam-"))
        self.file = self.folder / "secret"
        self.file.write_text(self.secret)
        self.file.chmod(0o666 if os.geteuid() == 0 else 0o600)
        os.environ["SECRET"] = self.secret
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        abstract = f"\0redteam-{self.secret[:8]}"
        self.listening = [
            self._socket(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._socket(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self._socket(socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "stream")),
            self._socket(socket.AF_UNIX, socket.SOCK_DGRAM, str(self.folder / "datagram")),
            self._socket(socket.AF_UNIX, socket.SOCK_STREAM, abstract),
        ]
        packages, package = _packages()
        self.names = {
            **{"file": str(self.file), "folder": str(self.folder), "pid": self.process.pid, "source": local.__file__},
            **{"tcp": self.listening[0].getsockname()[1], "udp": self.listening[1].getsockname()[1]},
            **{"unix": str(self.folder / "stream"), "datagram": str(self.folder / "datagram"), "abstract": abstract},
            **{"packages": packages, "package": f"/{package}/__init__.py", "module": package},
        }
        self.before = self.state()

    @staticmethod
    def _socket(family: int, kind: int, address: Any) -> socket.socket:
        made = socket.socket(family, kind)
        made.bind(address)
        if kind == socket.SOCK_STREAM:
            made.listen()
        made.setblocking(False)
        return made

    def state(self) -> dict[str, Any]:
        """Everything that no script may change."""
        pid, library = self.process.pid, os.stat(os.__file__)
        held = os.stat(self.file)
        return {
            "the process is alive": self.process.poll() is None,
            "its limits": Path(f"/proc/{pid}/limits").read_text() if self.process.poll() is None else "",
            "its priority": os.getpriority(os.PRIO_PROCESS, pid) if self.process.poll() is None else 0,
            "its processors": os.sched_getaffinity(pid) if self.process.poll() is None else set(),
            "the file": (self.file.read_text(), held.st_mode, held.st_mtime, held.st_nlink, os.listxattr(self.file)),
            "its folder": sorted(os.listdir(self.folder)),
            "the standard library": (library.st_mode, library.st_mtime, library.st_size),
            "shared memory": [Path(f"/proc/sysvipc/{kind}").read_text().count("\n") for kind in ("shm", "msg", "sem")],
            "queues": [_of_scripts(folder) for folder in ("/dev/shm", "/dev/mqueue") if os.path.isdir(folder)],
        }

    def harm(self) -> Iterator[str]:
        """What has changed, or was received."""
        now = self.state()
        yield from (f"victim: {name}" for name, was in self.before.items() if now[name] != was)
        self.before = now
        for listening in self.listening:
            try:
                if listening.type == socket.SOCK_STREAM:
                    listening.accept()[0].close()
                else:
                    listening.recv(100)
            except BlockingIOError:
                continue
            yield f"victim: something was received at {listening.getsockname()!r}"

    def close(self) -> None:
        """Remove everything."""
        self.process.kill()
        self.process.wait()
        for listening in self.listening:
            listening.close()
        for file in self.folder.iterdir():
            file.unlink()
        self.folder.rmdir()


def _of_scripts(folder: str) -> list[str]:
    """Files of a folder that a script may have made; the rest of the machine goes on meanwhile."""
    found = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            owner = entry.stat(follow_symlinks=False).st_uid
            if owner >= isolation.FIRST_UID or owner == os.geteuid() != 0:
                found.append(entry.name)
    return sorted(found)


def _packages() -> tuple[list[str], str]:
    """Folders of packages that this interpreter may have, and one of their packages."""
    import sysconfig

    folders = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], "/usr/lib/python3/dist-packages"}
    folders |= {path for path in sys.path if path.endswith("-packages")}
    found = sorted(f for f in folders if os.path.isdir(f))
    package = next((p.parent.name for f in found for p in sorted(Path(f).glob("*/__init__.py"))), "pip")
    return found, package


def attack(probe: Probe, sandbox: LocalSandbox, scene: Scene, namespaces: bool) -> tuple[list[str], Outcome]:
    """What did not hold under one probe."""
    limits = SandboxLimits(
        cpu_s=probe.cpu_s,
        wall_s=probe.wall_s,
        memory_mb=probe.memory_mb,
        processes=probe.processes,
        files_mb=FILES_MB,
        namespaces=namespaces,
    )
    code = probe.code.format(**scene.names, base=sandbox.base)
    outcome = sandbox.run_python(code, limits)
    text = outcome.stdout + outcome.stderr
    problems = [f"escape: {line}" for line in outcome.stdout.splitlines() if line.startswith("BROKE")]
    if scene.secret in text:
        problems.append("leak: the secret was printed")
    problems += scene.harm()
    problems += exceeded(outcome, limits, probe)
    problems += left(sandbox)
    return problems, outcome


def exceeded(outcome: Outcome, limits: SandboxLimits, probe: Probe) -> Iterator[str]:
    """Limits that were exceeded by more than a tenth."""
    if outcome.wall_s > 1.1 * limits.wall_s + SLACK_S:
        yield f"limit: {outcome.wall_s:.1f} s of wall time"
    # The kernel's accounting of one process; its children have the same limit each.
    if probe.processes == 1 and outcome.cpu_s > 1.1 * limits.cpu_s + 0.05:
        yield f"limit: {outcome.cpu_s:.2f} s of processor time"
    if len(outcome.stdout.encode()) + len(outcome.stderr.encode()) > 1.1 * limits.output_bytes:
        yield "limit: output"
    held = max((int(n) for n in re.findall(r"^HELD (\d+)", outcome.stdout, re.M)), default=0)
    if held > 1.1 * (limits.memory_mb + limits.files_mb) * 2**20:
        yield f"limit: {held >> 20} MiB"
    count = max((int(n) for n in re.findall(r"^COUNT (\d+)", outcome.stdout, re.M)), default=0)
    if count + 1 > limits.processes:
        yield f"limit: {count + 1} processes"


def left(sandbox: LocalSandbox) -> Iterator[str]:
    """Processes and files that are still there a moment later."""
    deadline = time.monotonic() + 10
    while True:
        folders, running = os.listdir(sandbox.base), _running(sandbox)
        if not folders and not running:
            return
        if time.monotonic() > deadline:
            yield f"left: {len(folders)} folders and {len(running)} processes"
            return
        time.sleep(0.02)


def _running(sandbox: LocalSandbox) -> list[str]:
    """Processes of a sandbox besides its zygote, by their command line or by a script's user."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        # Scripts have the command line of their zygote; those of other sandboxes are not looked at.
        strayed = isolation.FIRST_UID <= owner < isolation.FIRST_UID + 2**23 and "/verl-hier-" not in command
        ours = strayed or sandbox.base in command
        if ours and sandbox._zygote is not None and int(pid) != sandbox._zygote.pid:
            found.append(pid)
    return found


def attack_all(namespaces: bool, only: str, quick: bool) -> dict[str, Any]:
    """Every probe in this process's configuration: the layers, and for each probe what did not hold."""
    start = local.START
    sandboxes = {}
    try:
        for bare in (False, True):
            local.START = start.replace("main()", BARE) if bare else start
            sandboxes[bare] = LocalSandbox()
            layers = sandboxes[bare].run_python("", SandboxLimits(namespaces=namespaces)).layers
    finally:
        local.START = start
    scene = Scene()
    results: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    try:
        for probe in probes():
            if (only and probe.kind != only) or (quick and probe.kind not in QUICK):
                continue
            try:
                problems, outcome = attack(probe, sandboxes[probe.bare], scene, namespaces)
                if os.environ.get("REDTEAM_VERBOSE"):
                    print(probe.name, outcome.kind, repr((outcome.stdout + outcome.stderr)[-200:]), file=sys.stderr)
            except SandboxError as error:
                problems = [f"raised: {error}"]
            results[probe.name], kinds[probe.name] = problems, probe.kind
    finally:
        scene.close()
    return {"layers": list(layers), "promises": sorted(promises_of(layers)), "probes": results, "kinds": kinds}


QUICK = ("interpreter", "network", "processes", "files", "kernel")
"""The kinds whose scripts end at once."""


def command_of(configuration: str) -> list[str] | None:
    """The command that attacks in a configuration; None where this machine cannot make it."""
    is_root = os.geteuid() == 0
    if configuration in "AB" and not is_root:
        return None
    closed = any(not parent.stat().st_mode & 1 for parent in Path(os.__file__).parents)
    python = PLAIN_PYTHON if configuration != "A" and is_root and closed else sys.executable
    if not Path(python).exists():
        return None
    return [python, "-B", str(Path(__file__).resolve()), "--inside", configuration]


def run_configuration(configuration: str, further: list[str]) -> dict[str, Any] | None:
    """The results of one configuration, attacked in a process of its own."""
    command = command_of(configuration)
    if command is None:
        return None
    as_user: dict[str, Any] = {}
    if configuration in "CD" and os.geteuid() == 0:
        as_user = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    done = subprocess.run([*command, *further], stdout=subprocess.PIPE, text=True, cwd="/", **as_user, check=False)
    if done.returncode:
        raise SystemExit(f"configuration {configuration} ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    has = "namespaces" in result["layers"]
    return result if has == (configuration in "AC") else None


def show(results: dict[str, dict[str, Any]]) -> int:
    """Print a table of what held, and every failure; returns the number of failures."""
    failures = 0
    for configuration, result in results.items():
        print(f"\n{configuration}: {CONFIGURATIONS[configuration]}: {', '.join(result['layers'])}")
        held: dict[str, list[bool]] = defaultdict(list)
        for name, problems in result["probes"].items():
            held[result["kinds"][name]].append(not problems)
            failures += bool(problems)
            for problem in problems:
                print(f"  {name}: {problem}")
        print("  " + ", ".join(f"{kind} {sum(all_)}/{len(all_)}" for kind, all_ in held.items()))
    return failures


def main() -> None:
    """Attack in this process (`--inside`), or in one for each configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kind of probes")
    parser.add_argument("--quick", action="store_true", help="only kinds whose scripts end at once")
    parser.add_argument("--configurations", default="ABCD")
    parser.add_argument("--write", action="store_true", help="write docs/security.json")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        json.dump(attack_all(given.inside in "AC", given.only, given.quick), sys.stdout)
        return
    further = [*(["--only", given.only] if given.only else []), *(["--quick"] if given.quick else [])]
    results = {}
    for configuration in given.configurations:
        result = run_configuration(configuration, further)
        if result is None:
            print(f"\n{configuration}: {CONFIGURATIONS[configuration]}: not possible on this machine")
        else:
            results[configuration] = result
    failures = show(results)
    if given.write:
        about = {"kernel": platform.release(), "python": platform.python_version(), "machine": platform.machine()}
        text = json.dumps({"about": about, "configurations": results}, indent=1)
        (ROOT / "docs" / "security.json").write_text(text + "\n")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
