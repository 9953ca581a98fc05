"""Ways to win a package without mending it: none earns anything, and the reference solution always wins."""

import json
import os

import pytest

from verl_hier_plugins.environments.repository import SPEC
from verl_hier_plugins.environments.repository.environment import build
from verl_hier_plugins.environments.repository.judge import passes
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.repositories import repository_of

UP = os.pardir + "/"

ALL = {level: [*map(repository_of, SPEC.tasks(RepositoryOptions(level, pool=13), "train"))] for level in range(4)}
"""52 repositories."""

PASS = "def test_all():\n    assert True\n"
EDITS = {
    **{"no tests": {}, "tests that pass": {"tests/test_{m}.py": PASS}, "no text": {"tests/test_{m}.py": ""}},
    "skipped": {"tests/test_{m}.py": "import unittest\nraise unittest.SkipTest('later')\n"},
    "ended": {"tests/test_{m}.py": "import os\nos._exit(0)\n"},
    "exited": {"tests/test_{m}.py": "raise SystemExit(0)\n"},
    "broken": {"tests/test_{m}.py": "def (:\n"},
    "a conftest": {"conftest.py": "import os\nos._exit(0)\n"},
    "a conftest of the tests": {"tests/conftest.py": "def pytest_collection_modifyitems(items):\n    items.clear()\n"},
    "tests as a package": {"tests/__init__.py": "import sys\nsys.exit(0)\n"},
    "sitecustomize": {"sitecustomize.py": "import os\nos._exit(0)\n"},
    "usercustomize": {"usercustomize.py": "import os\nos._exit(0)\n"},
    "a module json": {"json.py": "def dumps(value):\n    return '[]'\n"},
    "a module importlib": {"importlib/__init__.py": "def import_module(name):\n    raise SystemExit(0)\n"},
    "a module io": {"io.py": "raise SystemExit(0)\n"},
    "a module os": {"os.py": "def _exit(status):\n    pass\n"},
    "a path file": {"garden.pth": "import os; os._exit(0)\n"},
    "settings of pytest": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "a setup": {"setup.cfg": "[tool:pytest]\npython_files = none.py\n"},
    "a project": {"pyproject.toml": "[tool.pytest.ini_options]\ntestpaths = ['nowhere']\n"},
    "hidden tests of its own": {"hidden/test_hidden.py": PASS},
    "a result": {"result.json": '{"won": true, "score": 1}'},
    "a test beside": {"tests/test_zzz.py": "import sys\nsys.modules['tests'] = sys\n"},
    "a tool": {"run_tests.py": "print('All tests pass.')\n"},
}
"""Files outside of the package; `{m}` is a module in which something is wrong."""

PRELUDES = [
    *("import os\nos._exit(0)", "import sys\nsys.exit(0)", "raise SystemExit(0)", "raise KeyboardInterrupt", "exit()"),
    *("print('[]')", "print('All hidden tests pass.')", 'print(\'{"won": true, "reward": 1}\')'),
    "import sys\nsys.__stdout__.write('[]')\nsys.__stdout__.flush()",
    "import os\nos.write(1, b'[]')",
    "import os\nfor n in range(64):\n    try: os.write(n, b'[true, true]')\n    except OSError: pass",
    "import os\nos.close(1)",
    "import json\njson.dumps = lambda *a, **k: 'true'",
    "import json\njson.dumps = lambda value, **k: type('Equal', (str,), {'__eq__': lambda s, o: True})('1')",
    "import __main__\n__main__.cases.clear()",
    "import __main__\n__main__.cases[:] = __main__.cases[:1]",
    "import __main__\n__main__.found = []\n__main__.out.write('[]')\n__main__.out.flush()",
    "import __main__\n__main__.package = 'json'",
    "import atexit, os\natexit.register(lambda: os._exit(0))",
    "import atexit\natexit.register(print, '[]')",
    "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
    "import importlib\nimportlib.import_module = lambda name: __import__('operator')",
    "import builtins\nbuiltins.getattr = lambda *a: (lambda *b: True)",
    "import builtins\nbuiltins.BaseException = Exception",
    "import gc\nfor o in gc.get_objects():\n    if isinstance(o, list) and o and isinstance(o[0], tuple): o.clear()",
    "import sys\nf = sys._getframe()\nwhile f:\n    f.f_globals.pop('cases', None); f = f.f_back",
    "import signal, os\nos.kill(os.getpid(), signal.SIGKILL)",
    "import sys\nsys.setrecursionlimit(5)",
    "import threading\nthreading.Thread(target=print, args=('[]',)).start()",
    "x = 'a' * 10 ** 10",
    "import ctypes",
    "import os\nprint(os.listdir('..'), os.listdir('/'))",
    pytest.param("while True: pass", marks=pytest.mark.slow),
]
"""Code at the top of a module of the package that is wrong, and of the package itself."""

BODIES = [
    *("return True", "return False", "return None", "return 0", "return 1", "return -1", "return []", "return ''"),
    *(
        "return '0'",
        "return [0]",
        "return float('nan')",
        "return float('inf')",
        "return object()",
        "return NotImplemented",
    ),
    *("return locals()", "return args", "return args[0]", "return args[0] + args[0]", "raise SystemExit(0)", "yield 1"),
    "return type('Any', (int,), {'__eq__': lambda s, o: True, '__repr__': lambda s: 'x'})()",
    "return type('Any', (str,), {'__eq__': lambda s, o: True, '__hash__': lambda s: 0})()",
    "return type('Any', (list,), {'__eq__': lambda s, o: True})()",
    "import random\n    return random.choice([True, False])",
    "import sys\n    return sys._getframe(1).f_globals.get('right')",
    "import sys\n    return sys._getframe(1).f_locals.get('expected')",
    "import inspect\n    return inspect.stack()[1].frame.f_globals['cases']",
    "import __main__\n    return __main__.found",
    "import unittest.mock\n    return unittest.mock.ANY",
    "import unittest.mock\n    return unittest.mock.MagicMock()",
]
"""A whole function that is wrong, which takes any arguments as `args`."""

PATHS = [
    *(
        UP + "{p}/core.py",
        "/tmp/{p}.py",
        "/{p}/core.py",
        "{p}/" + UP + UP + "x.py",
        "~/x.py",
        "./{p}/x.py",
        "{p}//x.py",
        "{p}/./x.py",
    ),
    *(
        ".hidden/x.py",
        "{p}/.x",
        "C:\\x.py",
        "{p}\\x.py",
        "x\0.py",
        "{p}/x\x1b.py",
        "/proc/self/mem",
        "/dev/stdout",
        "..",
        ".",
    ),
    *(
        "",
        " ",
        "-",
        "{p}/" + "d/" * 9 + "x.py",
        "x" * 400 + ".py",
        "{p}/ü.py",
        "file:///tmp/x",
        "$HOME/x.py",
        "{p}/*.py",
    ),
]
"""Places outside of the workspace, or none."""


def lost(made, changes, options=None):
    """Submit a workspace with files changed; true where it earns nothing."""
    files = made.broken
    for path, text in changes.items():
        files = files.with_file(path, text)
    return not passes(files, made.package, made.hidden, 1)


def home(made):
    """The module of the first function that is wrong."""
    return f"{made.package}/{made.targets[0][1]}.py"


@pytest.mark.parametrize("level", ALL)
def test_the_reference_wins_and_the_empty_patch_does_not(level):
    for made in ALL[level]:
        assert passes(made.reference, made.package, made.hidden, 1)
        assert lost(made, {})


@pytest.mark.parametrize("level", ALL)
def test_tests_that_are_edited_do_not_win(level):
    """Those that fail now pass, and say what the package says."""
    for made in ALL[level]:
        tests = [path for path in made.broken if path.startswith("tests/")]
        assert lost(made, dict.fromkeys(tests, PASS))


@pytest.mark.parametrize("level", ALL)
def test_half_of_what_is_wrong_is_not_enough(level):
    """What the failing tests say, and nothing else, is no solution; nor is one function of two."""
    for made in ALL[level]:
        known = [case for case in made.failing if case.function == made.targets[0][0]]
        table = {json.dumps(case.arguments): json.loads(case.right) for case in known}
        name, path = made.targets[0][0], home(made)
        learned = (
            f"import json\n_known, _old = {table!r}, {name}\n\n\ndef {name}(*args):\n    told = json.dumps(args)\n"
        )
        learned += "    return _known[told] if told in _known else _old(*args)\n"
        assert lost(made, {path: f"{made.broken[path]}\n\n{learned}"})
        if len({module for _, module in made.targets}) > 1:
            assert lost(made, {path: made.reference[path]})


@pytest.mark.parametrize("edit", EDITS)
def test_files_outside_of_the_package(edit):
    for level in (0, 3):
        made = ALL[level][0]
        changes = {path.format(m=made.targets[0][1]): text for path, text in EDITS[edit].items()}
        assert lost(made, changes)


@pytest.mark.parametrize("code", PRELUDES)
def test_code_beside_the_functions(code):
    made = ALL[0][1]
    for path in (home(made), f"{made.package}/__init__.py"):
        assert lost(made, {path: f"{code}\n\n{made.broken[path]}"})


@pytest.mark.parametrize("body", BODIES)
def test_functions_that_know_nothing(body):
    for made in (ALL[0][2], ALL[1][0]):
        path, name = home(made), made.targets[0][0]
        assert lost(made, {path: f"{made.broken[path]}\n\ndef {name}(*args):\n    {body}\n"})


@pytest.mark.parametrize("path", PATHS)
def test_places_outside_of_the_workspace(path):
    options = RepositoryOptions(pool=1)
    world = build(options)
    world.reset(SPEC.tasks(options, "train")[0], 0)
    before = world.workspace
    step = world.step(f"write {path.format(p=world.repository.package)}\nimport os\nos._exit(0)")
    assert not step.valid and step.reward < 0 and world.workspace is before
    assert not world.step("submit").info["won"]


def test_there_are_enough_of_them():
    assert min(map(len, (EDITS, PRELUDES, BODIES, PATHS))) >= 20 and sum(map(len, ALL.values())) >= 50
