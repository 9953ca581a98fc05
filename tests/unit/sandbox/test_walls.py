"""The walls of the sandbox one by one: system calls, folders, packages, causes of an end, what recipes may demand."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hier.errors import RecipeError
from verl_hier.local_sandbox import folders, local, syscalls
from verl_hier.local_sandbox.local import LocalSandbox, promises_of, run_python
from verl_hier.sandbox import scripts
from verl_hier.sandbox.provider import Outcome, SandboxLimits
from verl_hier.testing import check_sandbox

ROOT = Path(__file__).parents[3]
REDTEAM = ROOT / "scripts" / "redteam.py"


def redteam(*arguments, timeout=600):
    done = subprocess.run(
        [sys.executable, REDTEAM, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("configuration", "ABCD")
def test_other_processes_are_out_of_reach_in_every_configuration(configuration):
    """An ordinary user without namespaces could end the trainer by `resource.prlimit`."""
    told = redteam("--only", "processes", "--configurations", configuration)
    assert "processes 46/46" in told or "not possible on this machine" in told


@pytest.mark.parametrize(
    "configuration",
    # Without namespaces, as root and as an ordinary user: what holds there holds where namespaces add to it.
    [pytest.param(name, marks=pytest.mark.slow if name == "B" else pytest.mark.long) for name in "ABCD"],
)
def test_every_probe_is_held(configuration):
    told = redteam("--configurations", configuration)
    assert "kernel" in told or "not possible on this machine" in told


def test_the_number_of_probes():
    from tests.fixtures.probes import probes

    names = [(probe.kind, probe.name) for probe in probes()]
    assert len(names) >= 150 and len(set(names)) == len(names)


# ---- system calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "headers"),
    [
        (0, ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h")),
        (1, ("/usr/include/asm-generic/unistd.h",)),
    ],
)
def test_call_numbers_are_the_kernels(column, headers):
    header = next((Path(file) for file in headers if Path(file).exists()), None)
    if header is None:
        pytest.skip("no kernel headers here")
    known = {name: int(n) for name, n in re.findall(r"define __NR(?:3264)?_(\w+)\s+(\d+)\b", header.read_text())}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    numbers = syscalls.call_numbers(column)
    assert len(numbers) > 100 and {name: known.get(name) for name in numbers} == numbers


def test_a_machine_without_a_table_has_no_filter(monkeypatch):
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="no table"):
        syscalls.program.__wrapped__(False, False)


def test_the_filter_is_there_and_counts_as_a_promise():
    if sys.platform != "linux" or os.uname().machine not in syscalls.ARCHITECTURES:
        pytest.skip("no filter for this machine")
    assert "seccomp" in run_python("").layers
    assert promises_of(run_python("").layers) == {"network", "files", "processes", "memory"}


@pytest.mark.parametrize(
    ("layers", "promises"),
    [
        (("audit",), set()),
        (("landlock", "audit"), set()),
        (("user", "landlock", "audit"), {"processes"}),
        (("namespaces", "audit"), {"network", "processes"}),
        (("namespaces", "private_root", "audit"), {"network", "files", "processes"}),
        (("seccomp", "audit"), {"network", "processes", "memory"}),
        (("landlock", "seccomp", "audit"), {"network", "files", "processes", "memory"}),
    ],
)
def test_what_layers_promise(layers, promises):
    assert promises_of(layers) == promises


def test_the_standard_library_can_be_imported():
    """Its C libraries are out of a script's reach, so they are loaded before; see `runner.load_libraries`."""
    code = (
        "import sys, warnings\nwarnings.simplefilter('ignore')\n"
        "for name in sorted(sys.stdlib_module_names - {SKIPPED}):\n"
        "    try: __import__(name)\n"
        "    except ImportError: print(name)\n"
    )
    # These print, open a browser or a window, or may not be imported in a sandbox.
    skipped = {"antigravity", "this", "idlelib", "turtle", "turtledemo", "tkinter", "_tkinter", "ctypes", "_ctypes"}
    skipped |= {"_xxsubinterpreters", "_interpreters", "lib2to3"}
    code = code.replace("SKIPPED", ", ".join(map(repr, sorted(skipped))))
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    inside = run_python(code, SandboxLimits(cpu_s=10, wall_s=60, memory_mb=512))
    # `multiprocessing.dummy` and `asyncio` come with ctypes-free fall-backs; uuid looks for ctypes and goes on without.
    assert inside.kind == "ok" and set(inside.stdout.split()) <= set(plain.stdout.split()), inside


# ---- files -----------------------------------------------------------------------------------------------------------


def fill(folder, depth, name="d"):
    """Nest folders, deeper than a path may be long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.mark.parametrize(("depth", "name"), [(1500, "d"), (100, "d" * 250)])
def test_deep_folders_are_removed(tmp_path, depth, name):
    (tmp_path / "top").mkdir()
    fill(tmp_path / "top", depth, name)
    assert folders.remove(str(tmp_path / "top")) and not (tmp_path / "top").exists()


def test_closed_folders_are_removed_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    outside.chmod(0o755)
    top = tmp_path / "top"
    for number in range(5):
        (top / f"{number}" / "a" / "b").mkdir(parents=True)
        (top / f"{number}" / "a" / "file").write_text("x")
        (top / f"{number}" / "a" / "out").symlink_to(outside)
        (top / f"{number}" / "a").chmod(0)
        (top / f"{number}").chmod(0)
    os.mkfifo(top / "fifo")
    top.chmod(0o500)
    assert folders.remove(str(top)) and not top.exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755 and (outside / "kept").is_dir()
    assert folders.remove(str(top)), "what is gone counts as removed"


def test_removing_stops_at_its_limit_and_can_go_on(tmp_path):
    (tmp_path / "top").mkdir()
    fill(tmp_path / "top", 300)
    assert not folders.remove(str(tmp_path / "top"), limit_s=0)
    assert folders.remove(str(tmp_path / "top"))


def test_how_full_a_folder_is(tmp_path):
    assert not folders.is_too_full(str(tmp_path), 1000, 3)
    for name in "abc":
        (tmp_path / name).mkdir()
    assert not folders.is_too_full(str(tmp_path), 10**6, 3) and folders.is_too_full(str(tmp_path), 10**6, 2)
    (tmp_path / "a" / "file").write_bytes(bytes(10000))
    assert folders.is_too_full(str(tmp_path), 9000, 10)
    (tmp_path / "b" / "deep").mkdir()
    fill(tmp_path / "b" / "deep", 60, "d" * 250)
    assert folders.is_too_full(str(tmp_path), 10**9, 10**6), "what cannot be looked at is too much"


def test_files_of_a_script_are_limited_together_without_a_private_root(plain_interpreter):
    code = "n = 0\nwhile True:\n    open(str(n), 'wb').write(bytes(10**6)); n += 1"
    outcome = run_python(code, SandboxLimits(cpu_s=5, wall_s=30, namespaces=False))
    assert (outcome.kind, outcome.cause) == ("output", "files")
    assert not os.listdir(local._SANDBOX.base)


def test_a_private_root_where_python_is_below_tmp(monkeypatch, tmp_path):
    """A path below /tmp that a script has to read made the whole layer drop in silence."""
    if "private_root" not in run_python("").layers:
        pytest.skip("no private root here")
    library = Path("/tmp") / f"library-{os.getpid()}"
    library.mkdir(mode=0o755)
    (library / "there.txt").write_text("read me")
    (library / "there.txt").chmod(0o666)
    try:
        more = f"from verl_hier.local_sandbox import isolation; isolation.SHARED += ({str(library)!r},); main()"
        monkeypatch.setattr(local, "START", local.START.replace("main()", more))
        outcome = LocalSandbox().run_python(
            f"print(open({str(library / 'there.txt')!r}).read())\nopen('mine', 'w').write('x')\n"
            f"open({str(library / 'there.txt')!r}, 'a')"
        )
    finally:
        (library / "there.txt").unlink()
        library.rmdir()
    assert "private_root" in outcome.layers and outcome.stdout == "read me\n" and "Read-only" in outcome.stderr


def test_installed_packages_cannot_be_read():
    """A script could import the generator of its task and print the answer."""
    import pytest as package

    code = f"import sys\nsys.path.append({str(Path(package.__file__).parents[1])!r})\nimport pytest"
    outcome = run_python(code)
    assert outcome.kind == "error" and "ModuleNotFoundError" in outcome.stderr
    names = "import os, sys\nfor p in sys.path:\n q = p + '/site-packages'\n print(os.path.isdir(q) and os.listdir(q))"
    assert "[]" in (shown := run_python(names).stdout) or "False" in shown
    assert "pip" not in run_python(names).stdout


def test_a_traceback_does_not_name_files_of_ours():
    outcome = run_python("import socket\nsocket.socket()")
    assert "the sandbox has no network" in outcome.stderr and "verl_hier" not in outcome.stderr


# ---- why a script ended ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_timeout_is_one_even_if_the_supervisor_comes_late(monkeypatch):
    """Under load the kernel's own limit may end the script first, which was reported as `killed`."""
    late = (
        "from verl_hier.local_sandbox import runner; import os, time, select; slept = []; wait = runner.watch\n"
        "def watch(*a):\n    time.sleep(6); return wait(*a)\n"
        "runner.watch = watch; main()"
    )
    monkeypatch.setattr(local, "START", local.START.replace("; main()", f"\n{late}").replace("main; sys", "main\nsys"))
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    sandbox = LocalSandbox()
    for code in ("while True: pass", ignoring):
        outcome = sandbox.run_python(code, SandboxLimits(cpu_s=1, wall_s=30))
        assert (outcome.kind, outcome.cause) == ("timeout", "cpu"), outcome


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("1", "exit"),
        ("1 / 0", "exit"),
        ("while True: pass", "cpu"),
        ("import time\ntime.sleep(9)", "wall"),
        ("x = bytes(10**10)", "memory"),
        ("print('x' * 10**6)", "output"),
        ("import os\nos.abort()", "signal"),
    ],
)
def test_causes(code, cause):
    assert run_python(code, SandboxLimits(cpu_s=1, wall_s=1 if cause == "wall" else 20)).cause == cause


# ---- providers, and what a recipe demands ----------------------------------------------------------------------------


class WithoutNamespaces(LocalSandbox):
    """The built-in sandbox where namespaces are not allowed."""

    def run_python(self, code, limits=None, echo=False):
        from dataclasses import replace

        return super().run_python(code, replace(limits or SandboxLimits(), namespaces=False), echo)


@pytest.mark.parametrize("make", [LocalSandbox, WithoutNamespaces])
def test_the_built_in_sandbox_keeps_the_contract(make, plain_interpreter, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_sandbox(make(), file=str(secret), port=server.getsockname()[1], pid=os.getpid())
    assert secret.read_text() == "x"


class Recorded:
    """A provider with prepared outcomes."""

    def __init__(self, *outcomes, promises=frozenset()):
        self.outcomes, self.kept = list(outcomes), promises

    def run_python(self, code, limits=None, echo=False):
        return self.outcomes.pop(0)

    def promises(self):
        return self.kept


def ended(cause, text=""):
    return Outcome("timeout" if cause == "wall" else "ok", text, "", 0, 0.0, 0.0, (), cause)


def test_what_a_busy_machine_ended_is_run_again_and_not_remembered(monkeypatch):
    given = Recorded(ended("wall"), ended("exit", "good"))
    monkeypatch.setattr(scripts, "provider", lambda: given)
    assert scripts.run_once("print('busy')", 1, 77).stdout == "good"
    assert scripts.run_once("print('busy')", 1, 77).stdout == "good", "remembered"
    given.outcomes = [ended("wall"), ended("signal"), ended("exit", "later")]
    assert scripts.run_once("print('hung')", 1, 77).cause == "signal"
    assert scripts.run_once("print('hung')", 1, 77).stdout == "later"


def make_weak():
    return Recorded(promises=frozenset(("files",)))


@pytest.fixture
def chosen(monkeypatch):
    monkeypatch.setenv(scripts.PROVIDER_VARIABLE, "local")
    yield
    scripts._made.cache_clear()


def test_a_recipe_may_demand_what_the_sandbox_keeps(chosen):
    name = f"{__name__}:make_weak"
    scripts.choose(name, ["files"])
    assert os.environ[scripts.PROVIDER_VARIABLE] == name
    with pytest.raises(RecipeError, match=r"hier\.sandbox\.require: .* does not protect network and processes"):
        scripts.choose(name, ["files", "network", "processes"])
    for wrong in ("nothing", "json:nothing", "no.such.module:make"):
        with pytest.raises(RecipeError, match=r"hier\.sandbox\.provider"):
            scripts.choose(wrong, ["files"])
    scripts.choose("local", [])


def test_a_run_does_not_start_with_less_than_its_recipe_demands(chosen):
    from verl_hier.recipe.composed import ComposedRecipe
    from verl_hier.recipe.runner import RolloutRunner

    lines = [f"+hier.sandbox={{provider: '{__name__}:make_weak', require: [network]}}"]
    recipe = ComposedRecipe.named("grpo_python_tool", lines)
    with pytest.raises(RecipeError, match=r"hier\.sandbox\.require: .* network"):
        RolloutRunner(recipe, None, 1).pool()
