"""What is left of ours in the process of a script: run it, show its traceback, end.

These functions have everything that they need in this module, so that all others of verl-hier can be taken out of the
process before the script begins.
"""

from __future__ import annotations

import _ast
import atexit
import linecache
import os
import random
import sys
import traceback
from types import ModuleType
from typing import Any

STATUS = 3
"""Descriptor of the pipe to the supervisor."""

OUT_OF_MEMORY = b"m"
"""What is written to it when a script ended for want of memory."""

OWN_NAMES = ("verl_hier", "ctypes", "_ctypes")
OWN_FOLDER = os.path.dirname(__file__) + "/"


def take_out(*namespaces: dict[str, Any]) -> None:
    """Make verl-hier and ctypes unavailable to the script.

    Args:
        namespaces: what these modules hold, which is emptied: frames of the running call would still lead to it.
    """
    for name in list(sys.modules):
        if name.partition(".")[0] in OWN_NAMES:
            del sys.modules[name]
    for namespace in namespaces:
        namespace.clear()


def run(code: str, echo: bool) -> int:
    """Run the script as `__main__`; with `echo` the value of a last expression is printed, as Python's prompt does.

    Returns:
        The exit status.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["script.py"]
    # Equal scripts must have equal outcomes.
    random.seed(0)
    try:
        tree: Any = compile(code, "script.py", "exec", _ast.PyCF_ONLY_AST)
        last = tree.body.pop() if echo and tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "script.py", "exec"), main.__dict__)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), "script.py", "eval"), main.__dict__)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
    except MemoryError:
        # A traceback would take memory that is not there.
        os.write(2, b"MemoryError\n")
        os.write(STATUS, OUT_OF_MEMORY)
    except BaseException as error:
        _show(error, code)
    return 1


def leave(status: int) -> None:
    """Exit as the interpreter would, without the ten milliseconds that its own clean-up takes."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _show(error: BaseException, code: str) -> None:
    """Print the traceback of the script's own frames, with their source lines."""
    linecache.cache["script.py"] = len(code), None, code.splitlines(keepends=True), "script.py"
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(
        [frame for frame in shown.stack if not frame.filename.startswith(OWN_FOLDER)]
    )
    sys.stderr.writelines(shown.format())
