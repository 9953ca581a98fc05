"""What runs in the sandbox: the tests of a workspace, and the hidden cases on its package.

The results that the hidden cases should have are compared here and never enter the sandbox, so what a policy's code
prints, replaces or ends there cannot make a case count as right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_hier.sandbox.scripts import run_once
from verl_hier_plugins.environments.repository.repositories import Case
from verl_hier_plugins.environments.repository.workspace import Workspace

MEMORY_MB = 128
LONGEST_RESULT = 10_000
"""Characters of a result that are compared; those of the units have far fewer."""
_LONGEST = 300
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")

_BEGIN = """
import importlib, io, json, os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, os.getcwd())
for path, text in files.items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(text)
out, sys.stdout, sys.stderr = sys.stdout, io.StringIO(), io.StringIO()
"""
_CASES = """
found = []
for module, function, arguments in cases:
    try:
        value = getattr(importlib.import_module(f"{package}.{module}"), function)(*arguments)
        found.append(json.dumps(value)[:most])
    except BaseException as error:
        found.append(type(error).__name__)
out.write(json.dumps(found))
out.flush()
"""
_TESTS = '''
import ast

def told(error, path):
    """Why a test failed: of a comparison, what stands on its left side."""
    tree, at, said = ast.parse(files.get(path, "")), error.__traceback__, f"{type(error).__name__}: {error}"
    while at is not None and not at.tb_frame.f_code.co_filename.endswith(path):
        at = at.tb_next
    if at is None or not isinstance(error, AssertionError):
        return said
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno == at.tb_lineno:
            said = ast.unparse(node.test)
            if isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
                left = compile(ast.Expression(node.test.left), path, "eval")
                value = eval(left, at.tb_frame.f_globals, at.tb_frame.f_locals)
                return said, repr(value)[:most]
    return said

def outcome(path, call):
    try:
        call()
    except BaseException as error:
        try:
            said = told(error, path)
        except BaseException:
            said = type(error).__name__
        return [part[:most] for part in (said if isinstance(said, tuple) else (said, ""))]

found = []
for path in sorted(files):
    folder, _, name = path.rpartition("/")
    if folder != "tests" or not name.startswith("test_") or not name.endswith(".py"):
        continue
    tests = []
    def load():
        space = vars(importlib.import_module(f"tests.{name[:-3]}"))
        tests.extend((each, test) for each, test in space.items() if each.startswith("test_") and callable(test))
    failed = outcome(path, load)
    if failed:
        found.append([path, "", *failed])
    for each, test in tests:
        found.append([path, each, *(outcome(path, test) or ("", ""))])
out.write(json.dumps(found))
out.flush()
'''


@dataclass(frozen=True)
class TestResult:
    """What became of one test.

    Attributes:
        file: of the test.
        test: its name; empty where the file could not be imported.
        failure: why it failed: what it asserts, or an exception; empty where it passed.
        value: what stands on the left side of the assertion, where that is a comparison.
    """

    file: str
    test: str
    failure: str
    value: str


def run_tests(workspace: Workspace, cpu_s: int) -> tuple[TestResult, ...] | str:
    """The results of a workspace's tests, the functions `test_*` in `tests/test_*.py`; what ended the run (`timeout`,
    …) where there are none. They are what the workspace's own code says, and good for showing only."""
    script = f"files = {dict(workspace)!r}\nmost = {_LONGEST}\n{_BEGIN}{_TESTS}"
    outcome = run_once(script, cpu_s, MEMORY_MB)
    found = _read(outcome.stdout)
    if outcome.kind != "ok" or found is None:
        return outcome.kind if outcome.kind != "ok" else "error"
    return tuple(
        TestResult(*(_ADDRESS.sub("at 0x", part) for part in each))
        for each in found
        if isinstance(each, list) and len(each) == 4 and all(isinstance(part, str) for part in each)
    )


def passes(workspace: Workspace, package: str, hidden: Sequence[Case], cpu_s: int) -> bool:
    """Whether the package in a workspace has the right result for every hidden case.

    Only the package's own modules are in the sandbox, and the arguments of the cases. A run that does not end, or whose
    output is none, has no right result.
    """
    files = {path: text for path, text in workspace.items() if path.startswith(f"{package}/") and path.endswith(".py")}
    cases = [(case.module, case.function, case.arguments) for case in hidden]
    named = {"files": files, "package": package, "cases": cases, "most": LONGEST_RESULT}
    script = "\n".join(f"{name} = {value!r}" for name, value in named.items())
    return _read(run_once(f"{script}\n{_BEGIN}{_CASES}", cpu_s, MEMORY_MB).stdout) == [case.right for case in hidden]


def _read(printed: str) -> list[object] | None:
    """A list in JSON, as the scripts print it."""
    try:
        found = json.loads(printed)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None
