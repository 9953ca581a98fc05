"""The process in which environments live: `python -m verl_hier.environments.child <fd> <parent pid>`.

It imports the light part of this package and what the factory needs: no torch, no verl, no Ray. It ends when the pool
closes the socket or, if an environment hangs then, when it notices that its parent has ended.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.wire import HEADER, pack, unpack
from verl_hier.errors import HierError
from verl_hier.host.specs import LazyFunction

PARENT_CHECK_S = 1.0


class Instances:
    """The environments of this process by number, and the calls that the pool may make."""

    def __init__(self, factory: Callable[[Any], Environment], options: Any) -> None:
        self._factory = factory
        self._options = options
        self._instances: dict[int, Environment] = {}

    def open(self, number: int, task: Mapping[str, Any], seed: int) -> StepResult:
        self._instances[number] = environment = self._factory(self._options)
        return _checked(environment.reset(task, seed), "reset")

    def step(self, number: int, action: str) -> StepResult:
        return _checked(self._instances[number].step(action), "step")

    def fork(self, number: int, copy: int) -> bool:
        made = self._instances[number].fork()
        if made is None:
            return False
        if made is self._instances[number]:
            raise TypeError("fork() must return another instance, not itself")
        self._instances[copy] = made
        return True

    def replay(self, number: int, task: Mapping[str, Any], seed: int, actions: tuple[str, ...]) -> list[StepResult]:
        return [self.open(number, task, seed), *(self.step(number, action) for action in actions)]

    def close(self, number: int) -> None:
        environment = self._instances.pop(number, None)
        if environment is not None:
            environment.close()

    def forget(self, number: int) -> None:
        """Drop an instance whose code raised, even if its `close` raises as well."""
        try:
            self.close(number)
        except Exception:
            self._instances.pop(number, None)

    def close_all(self) -> None:
        for number in list(self._instances):
            self.forget(number)


def _checked(step: Any, method: str) -> StepResult:
    if not isinstance(step, StepResult):
        raise TypeError(f"{method}() must return a verl_hier.environments.base.StepResult, got {type(step).__name__}")
    return step


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _next(connection: socket.socket) -> Any:
    (size,) = HEADER.unpack(_receive(connection, HEADER.size))
    return unpack(_receive(connection, size))


def _answer(instances: Instances, method: str, number: int, arguments: tuple[Any, ...]) -> bytes:
    """The packed reply to one call: `(kind, payload)`; no exception of an environment leaves this function."""
    try:
        return pack(("done", getattr(instances, method)(number, *arguments)))
    except HierError as error:
        instances.forget(number)
        return pack(("refused", str(error)))
    except (Exception, SystemExit) as error:
        instances.forget(number)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return pack(("raised", f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"))


def _leave_with(parent: int) -> None:
    """Exit when the parent has ended, even while an environment hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def serve(connection: socket.socket) -> None:
    """Answer calls one after the other until the pool closes the connection."""
    path, setup = _next(connection)
    try:
        factory, options = unpack(setup)
        instances = Instances(factory.resolve() if isinstance(factory, LazyFunction) else factory, options)
    except HierError as error:
        connection.sendall(pack(("refused", str(error))))
        return
    except Exception as error:
        connection.sendall(pack(("raised", f"cannot import {path!r} or its options: {type(error).__name__}: {error}")))
        return
    connection.sendall(pack(("ready", os.getpid())))
    try:
        while True:
            method, number, arguments = _next(connection)
            # If this process dies now, the pool knows during which call.
            connection.sendall(pack(("started", None)))
            connection.sendall(_answer(instances, method, number, arguments))
    except (EOFError, ConnectionError):
        instances.close_all()


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
