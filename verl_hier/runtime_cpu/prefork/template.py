"""The process that has imported what Ray's workers need: `python -m … <socket> <module …>`; forks on request.

It ends when its standard input does. A fork keeps only the thread that made it, so nothing here may start one; that of
PyArrow's allocator (jemalloc) comes back by itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hier.runtime_cpu.prefork.worker import FORKED

READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "HF_", "TRANSFORMERS_")
"""Beginnings of the variables that the imported modules may have read; verl, with its own, is not one of them."""


def main() -> None:
    """Import, and then fork as `worker.py` asks until standard input ends."""
    number, *modules = sys.argv[1:]
    given = dict(os.environ)
    listener = socket.socket(fileno=int(number))
    # Ctrl-C reaches this process too, while it imports.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all(modules)
    serve(listener, given)


def import_all(modules: Sequence[str]) -> None:
    """Import these; one that is missing here is missed by the worker that needs it."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def serve(listener: socket.socket, given: Mapping[str, str]) -> None:
    """Fork as `worker.py` asks until standard input ends; returns in a fork when its script has ended.

    Args:
        listener: where the requests come in; it is closed, and its folder removed at the end.
        given: the environment in which the modules were imported.
    """
    # Ctrl-C is the driver's business, and children end by themselves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Objects that are never looked at by the garbage collector stay on the pages that all forks share.
    gc.collect()
    gc.freeze()
    folder = Path(listener.getsockname()).parent
    with listener:
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), listener], [], [])
            if sys.stdin.fileno() in ready:
                break
            with contextlib.suppress(OSError, ValueError):
                request = _answer(listener, given)
                if request is not None:
                    listener.close()
                    _become(request, given)
                    return
    shutil.rmtree(folder, ignore_errors=True)


def _answer(listener: socket.socket, given: Mapping[str, str]) -> dict[str, Any] | None:
    """Answer one request; returns it in the fork, and None in the template.

    Args:
        listener: where the requests come in.
        given: the environment in which the modules were imported.
    """
    connection, _ = listener.accept()
    with connection:
        length, streams, _, _ = socket.recv_fds(connection, 8, 3)
        try:
            text = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            request: dict[str, Any] = json.loads(text)
            if not same_at_import(given, request["environment"]):
                return None
            if os.fork() == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                return request
            connection.sendall(FORKED)
        finally:
            for stream in streams:
                os.close(stream)
    return None


def same_at_import(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Whether two environments agree in what modules read when they are imported; "0" is the same as nothing."""
    names = {name for name in {*ours, *theirs} if name.startswith(READ_AT_IMPORT)}
    return all((ours.get(name) or "0") == (theirs.get(name) or "0") for name in names)


def _become(request: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Run the script of the request in this process, as the interpreter would in a new one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    by_imports = {name: value for name, value in os.environ.items() if given.get(name) != value}
    os.environ.clear()
    os.environ.update(by_imports | request["environment"])
    os.chdir(request["folder"])
    os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    if "numpy" in sys.modules:
        # Python's own generator is seeded anew by a fork; NumPy's is not.
        sys.modules["numpy"].random.seed()
    script = request["arguments"][0]
    sys.argv = list(request["arguments"])
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
