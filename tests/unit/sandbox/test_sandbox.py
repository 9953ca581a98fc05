"""The sandbox holds hostile scripts: what it limits, what it hides, and what stands behind the audit hook."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_hier.local_sandbox import audit, local, runner
from verl_hier.local_sandbox.local import LocalSandbox, run_python
from verl_hier.sandbox.provider import SandboxError, SandboxLimits

# Processor time tells on every machine; wall time is short only where nothing but it can end a script.
QUICK = SandboxLimits(cpu_s=1, wall_s=30)
HASTY = SandboxLimits(cpu_s=1, wall_s=0.5)


def layers():
    return run_python("").layers


def running(base):
    """Processes of a sandbox, by the directory on their command line: zygote, supervisors, script processes."""
    listed = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if base in line]


def check_nothing_is_left():
    base = local._SANDBOX.base
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(running(base)) > 1:
        time.sleep(0.05)
    assert running(base) == [str(local._SANDBOX._zygote.pid)] and not list(Path(base).iterdir())


def test_a_script_runs_and_says_what_it_has_to_say():
    outcome = run_python("import sys\nprint(6 * 7)\nprint('oh', file=sys.stderr)")
    assert (outcome.kind, outcome.stdout, outcome.stderr, outcome.status) == ("ok", "42\n", "oh\n", 0)
    assert 0 < outcome.wall_s < 20 and 0 <= outcome.cpu_s < 2


@pytest.mark.parametrize(
    ("code", "echo", "stdout"),
    [
        ("6 * 7", True, "42\n"),
        ("6 * 7", False, ""),
        ("x = 1\nx + 1", True, "2\n"),
        ("print(1)", True, "1\n"),
        ("", True, ""),
        ("import random; print(random.random())", False, "0.8444218515250481\n"),
        ("if __name__ == '__main__': print(__name__)", False, "__main__\n"),
        ("import atexit; atexit.register(print, 'bye')", False, "bye\n"),
    ],
)
def test_echo_and_equal_conditions(code, echo, stdout):
    assert run_python(code, echo=echo).stdout == stdout


@pytest.mark.parametrize(
    ("code", "status", "last"),
    [
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f(:", 1, "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no"),
        ("\0", 1, "source code string cannot contain null bytes"),
        ("'\ud800'", 1, "surrogates not allowed"),
        ("def f(): return f()\nf()", 1, "RecursionError: maximum recursion depth exceeded"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_errors_are_reported_with_the_scripts_own_frames(code, status, last):
    outcome = run_python(code)
    assert (outcome.kind, outcome.status) == ("error", status)
    assert last in outcome.stderr.strip().rpartition("\n")[2]
    assert "runner.py" not in outcome.stderr and "isolation.py" not in outcome.stderr


def test_the_traceback_shows_the_line():
    assert 'File "script.py", line 2, in <module>\n    int(x)' in run_python("x = 'a'\nint(x)").stderr


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(60)", "timeout"),
        ("import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass", "timeout"),
        ("x = bytearray(10**9)", "memory"),
        ("x = []\nwhile True: x.append(bytes(10**7))", "memory"),
        ("print('x' * 10**7)", "output"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
        ("import os\nos.abort()", "killed"),
        ("open('big', 'wb').write(bytes(10**7))", "error"),
        ("f = [open(str(n), 'w') for n in range(1000)]", "error"),
        ("(" * 10000, "error"),
    ],
)
def test_limits(code, kind):
    began = time.monotonic()
    outcome = run_python(code, HASTY if "sleep" in code else QUICK)
    assert outcome.kind == kind, outcome
    assert time.monotonic() - began < 50
    assert len(outcome.stdout) + len(outcome.stderr) <= QUICK.output_bytes


SLOW_CLOCK = (
    "import os; wait4 = os.wait4; "
    "os.wait4 = lambda *a: (*(found := wait4(*a))[:2], type(found[2])((0.0, 0.0, *found[2][2:]))); main()"
)


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_cause_of_a_timeout_does_not_depend_on_measured_time(monkeypatch, plain_interpreter, namespaces):
    """The accounting of a busy machine may report less processor time than the limit that ended the script."""
    monkeypatch.setattr(local, "START", local.START.replace("main()", SLOW_CLOCK))
    outcome = run_python("while True: pass", SandboxLimits(cpu_s=1, wall_s=30, namespaces=namespaces))
    assert (outcome.kind, outcome.cpu_s) == ("timeout", 0.0)


def test_the_kernels_own_limit_is_a_timeout_even_if_it_comes_first():
    killed, sigxcpu = signal.SIGKILL.value, bytes([signal.SIGXCPU])
    assert runner.cause_of_end(killed, True, sigxcpu + bytes([signal.SIGCHLD]), b"b") == "cpu"
    assert runner.cause_of_end(killed, False, b"", b"b") == "cpu"
    assert runner.cause_of_end(killed, True, bytes([signal.SIGCHLD]), b"b") == "signal"


def test_a_script_that_is_killed_before_its_limit_is_no_timeout(plain_interpreter, without_hook):
    outcome = run_python("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", ALONE)
    assert (outcome.kind, outcome.status) == ("killed", -signal.SIGKILL)


def test_only_an_uncaught_memory_error_counts_as_memory():
    printed = "import sys\nprint('MemoryError', file=sys.stderr)\nsys.exit(1)"
    assert run_python(printed).kind == "error"
    assert run_python("raise MemoryError").kind == "memory"


def test_no_limit_can_be_raised_again():
    code = (
        "import resource as r\n"
        "for name in ('CPU', 'AS', 'NPROC', 'FSIZE', 'NOFILE'):\n"
        "    limit = getattr(r, 'RLIMIT_' + name)\n"
        "    try: r.setrlimit(limit, (r.RLIM_INFINITY, r.RLIM_INFINITY))\n"
        "    except ValueError: print(name)\n"
    )
    assert run_python(code).stdout.split() == ["CPU", "AS", "NPROC", "FSIZE", "NOFILE"]


def test_a_script_sees_no_variables_and_no_arguments_of_ours(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    code = "import os, sys\nprint(sorted(os.environ), sys.argv, os.listdir('.'), sys.flags.no_site)\nprint(sys.path)"
    outcome = run_python(code)
    known = "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'PYTHONUTF8', 'TZ'] ['script.py'] [] 1"
    assert outcome.stdout.splitlines()[0] == known
    assert "site-packages" not in outcome.stdout and "verl" not in outcome.stdout


def test_standard_input_is_empty():
    assert run_python("import sys\nprint(repr(sys.stdin.read()))").stdout == "''\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass",
        "import subprocess\nsubprocess.run(['sleep', '77'])",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(77,)).start()",
        "import os\nos.execv('/bin/sleep', ['sleep', '77'])",
        "import os\nos.system('sleep 77 &')",
    ],
)
def test_a_script_starts_nothing(code):
    outcome = run_python(code, QUICK)
    assert outcome.kind == "error"
    # Python tells its audit hooks of threads from 3.12 on.
    assert "the sandbox has no other processes" in outcome.stderr or "can't start new thread" in outcome.stderr


def test_a_fork_bomb_is_bounded_and_gone_afterwards():
    if "namespaces" not in layers():
        pytest.skip("no namespaces here: a script can start no process at all")
    code = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: os.setsid(); time.sleep(77)\n"
        "        made += 1\n"
        "except BlockingIOError: print(made, flush=True)\n"
        "time.sleep(77)\n"
    )
    outcome = run_python(code, SandboxLimits(wall_s=1.5, processes=8))
    assert (outcome.kind, outcome.stdout) == ("timeout", "7\n")
    check_nothing_is_left()


def test_threads_where_the_limit_allows_them():
    if not {"namespaces", "user"} & set(layers()):
        pytest.skip("a number of processes needs a user or a namespace of its own")
    code = "from threading import Thread\nt = Thread(target=print, args=(1,))\nt.start()\nt.join()"
    assert run_python(code, SandboxLimits(processes=2)).stdout == "1\n"


def test_nothing_is_left_behind():
    run_python("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.chmod('a', 0)")
    for code in ("open('x', 'w').write('x')", "while True: pass", "print('x' * 10**6)"):
        run_python(code, QUICK)
    check_nothing_is_left()


def test_calls_from_several_threads_do_not_mix():
    found = {}

    def work(number):
        found[number] = run_python(f"print({number} * 1000)").stdout

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"{n * 1000}\n" for n in range(12)}


def test_a_killed_zygote_is_started_again():
    run_python("")
    local._SANDBOX._zygote.kill()
    local._SANDBOX._zygote.wait()
    assert run_python("print(1)").stdout == "1\n"


def test_the_script_ends_with_the_process_that_asked_for_it():
    code = (
        "import threading, time, os\n"
        "from verl_hier.local_sandbox import local\n"
        "from verl_hier.local_sandbox.local import run_python\n"
        "from verl_hier.sandbox.provider import SandboxLimits\n"
        "limits = SandboxLimits(cpu_s=60, wall_s=60)\n"
        "threading.Thread(target=run_python, args=('while True: pass', limits), daemon=True).start()\n"
        "time.sleep(1)\n"
        "print(local._SANDBOX.base, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    base = done.stdout.strip()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (running(base) or os.path.exists(base)):
        time.sleep(0.1)
    assert not running(base) and not os.path.exists(base)


def test_limits_that_make_no_sense_are_refused():
    for wrong in ({"cpu_s": 0}, {"wall_s": -1}, {"memory_mb": 8}, {"output_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SandboxLimits(**wrong)


# ---- isolation layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)",
        "import urllib.request\nurllib.request.urlopen('http://1.1.1.1')",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('/tmp/x')",
    ],
)
def test_there_is_no_network(code):
    outcome = run_python(code, QUICK)
    assert outcome.kind == "error" and "the sandbox has no network" in outcome.stderr


def test_there_is_no_ctypes():
    for code in ("import ctypes", "import _ctypes", "from ctypes import CDLL"):
        assert "the sandbox has no ctypes" in run_python(code).stderr


def test_files_of_the_machine_are_out_of_reach(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o666)
    readers = [f"print(open({str(secret)!r}).read())", f"open({str(secret)!r}, 'w').write('x')"]
    readers += [f"import os\nprint(os.listdir({str(tmp_path)!r}))", f"import os\nos.remove({str(secret)!r})"]
    readers += [f"import shutil\nshutil.rmtree({str(tmp_path)!r})", f"print(open({__file__!r}).read())"]
    for code in readers:
        outcome = run_python(code)
        assert outcome.kind == "error" and "s3cret" not in outcome.stdout, outcome
    assert secret.read_text() == "s3cret"


def test_the_interpreters_own_files_cannot_be_changed():
    path = os.__file__
    assert run_python(f"print(len(open({path!r}).read()) > 1000)").stdout == "True\n"
    before = Path(path).stat()
    assert run_python(f"open({path!r}, 'a').write('')").kind == "error"
    assert Path(path).stat().st_mtime == before.st_mtime


@pytest.fixture
def without_hook(monkeypatch):
    """Sandboxes without audit hook and seccomp filter, so that what stands behind them is on its own."""
    bare = (
        "from verl_hier.local_sandbox import audit, script, syscalls\n"
        "def none(*arguments): raise OSError\n"
        "syscalls.install = none; audit.guard = lambda *_: lambda *_: None; script.OWN_NAMES = ('verl_hier',)\n"
        "main()"
    )
    bare = local.START.replace("main; sys", "main\nsys").replace("; main()", f"\n{bare}")
    monkeypatch.setattr(local, "START", bare)
    monkeypatch.setattr(local, "_SANDBOX", LocalSandbox())


def test_namespaces_hold_without_the_hook(without_hook):
    if not {"namespaces", "private_root"} <= set(layers()):
        pytest.skip("no namespaces here")
    tries = {
        "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)": "Network is unreachable",
        "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)": "Network is unreachable",
        "import os\nos.fork()": "Resource temporarily unavailable",
        "open('/etc/passwd')": "No such file or directory",
        "import os\nprint(os.listdir('/proc'))": "No such file or directory",
        f"import os\nos.kill({os.getpid()}, 9)": "No such process",
        f"open({os.__file__!r}, 'a')": "Read-only file system",
        "import os\nos.setuid(0)" if os.geteuid() == 0 else "import os\nos.setuid(1)": "Operation not permitted",
    }
    for code, answer in tries.items():
        error = run_python(code).stderr
        assert answer in error or ("'/etc/passwd'" not in code and "Permission denied" in error), (code, error)
    names = run_python("import os\nprint(*sorted(os.listdir('/')))").stdout.split()
    assert set(names) <= {"dev", "etc", "lib", "lib64", "tmp", "usr", Path(sys.base_prefix).parts[1]}


def test_mounts_cannot_be_undone_without_the_hook(without_hook):
    if "private_root" not in layers():
        pytest.skip("no private root here")
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"target = {str(Path(os.__file__).parent)!r}.encode()\n"
        "print(libc.mount(None, b'/tmp', None, 32 | 4096, None), ctypes.get_errno())\n"
        "print(libc.umount2(target, 2), ctypes.get_errno())\n"
        "print(libc.chroot(b'/tmp'), ctypes.get_errno())\n"
    )
    assert run_python(code).stdout.splitlines() == ["-1 1"] * 3


ALONE = SandboxLimits(cpu_s=1, wall_s=30, namespaces=False)


def test_without_namespaces_the_other_layers_remain(plain_interpreter, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(local, "_told", set())
    caplog.set_level("INFO", local.__name__)
    outcome = run_python("print(1)", ALONE)
    assert outcome.stdout == "1\n" and "namespaces" not in outcome.layers and "audit" in outcome.layers
    assert "the sandbox for model-written Python has the layers" in caplog.text or "does not protect" in caplog.text
    hostile = {
        "while True: pass": "timeout",
        "x = bytearray(10**9)": "memory",
        "print('x' * 10**7)": "output",
        "import os\nos.fork()": "error",
        "import socket\nsocket.socket()": "error",
        "open('/etc/passwd')": "error",
        f"open({str(tmp_path / 'x')!r}, 'w')": "error",
        "import os\nos.listdir('/')": "error",
        "import os\nos.kill(os.getppid(), 9)": "error",
    }
    for code, kind in hostile.items():
        assert run_python(code, ALONE).kind == kind, code
    assert run_python("open('x', 'w').write('u')\nprint(open('x').read())", ALONE).stdout == "u\n"


def test_landlock_holds_without_the_hook(plain_interpreter, without_hook, tmp_path):
    if "landlock" not in run_python("", ALONE).layers:
        pytest.skip("no Landlock here")
    for code in ("open('/etc/passwd')", f"open({str(tmp_path / 'x')!r}, 'w')", "import os\nos.listdir('/')"):
        assert "PermissionError" in run_python(code, ALONE).stderr
    assert "BlockingIOError" in run_python("import os\nos.fork()", ALONE).stderr
    # Another user's process if we are root, out of Landlock's scope (Linux 6.12) if not.
    if os.geteuid() == 0 or tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12):
        assert "PermissionError" in run_python(f"import os\nos.kill({os.getpid()}, 0)", ALONE).stderr


def test_root_does_not_run_scripts_without_isolation(monkeypatch):
    library = Path(os.__file__).parent
    if os.geteuid() != 0 or all(part.stat().st_mode & 1 for part in library.parents):
        pytest.skip("needs root with a Python that nobody else can read")
    monkeypatch.setattr(local, "_SANDBOX", LocalSandbox())
    with pytest.raises(SandboxError, match="must not run as root"):
        run_python("", ALONE)


def test_an_interpreter_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(local, "START", "raise SystemExit(1)")
    monkeypatch.setattr(local, "_SANDBOX", LocalSandbox())
    with pytest.raises(SandboxError):
        run_python("print(1)")


# ---- anything at all -------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(), st.text("()[]{}:=+-*'\"\\\n\t 019abcdefimnoprtx_.@", max_size=60)))
def test_any_text_has_an_outcome(code):
    assert run_python(code, QUICK, echo=True).kind in ("ok", "error", "timeout", "memory", "output", "killed")


def test_the_hook_knows_paths():
    hook = audit.guard(False, ("/usr/lib", "/tmp/work"))
    hook("open", ("/tmp/work/a", "r", 0))
    hook("open", (3, "r", 0))
    for event, arguments in (("open", ("/tmp/workshop", "r", 0)), ("os.rename", ("/tmp/work/a", "/tmp/b", -1, -1))):
        with pytest.raises(PermissionError):
            hook(event, arguments)
