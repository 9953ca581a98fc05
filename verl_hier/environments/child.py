"""The process in which environments live: `python -m verl_hier.environments.child <fd> <parent pid>`.

It imports the light part of this package and what the factory needs: no torch, no verl, no Ray. It ends when the pool
closes the socket or, if an environment hangs then, when it notices that its parent has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.mask import Mask
from verl_hier.environments.wire import HEADER, LONGEST_ERROR, cut, from_step, pack, unpack
from verl_hier.errors import HierError, raised_at
from verl_hier.host.lazy import LazyFunction

PARENT_CHECK_S = 1.0
PR_SET_PDEATHSIG = 1
MASK = Mask.of_process()
"""Texts are masked before they are cut, and once more where they leave."""


class Instances:
    """The environments of this process by number, and the calls that the pool may make."""

    def __init__(self, factory: Callable[[Any], Environment], options: Any) -> None:
        self._factory = factory
        self._options = options
        self._instances: dict[int, Environment] = {}

    def open(self, number: int, task: Mapping[str, Any], seed: int) -> dict[str, Any]:
        self._instances[number] = environment = self._factory(self._options)
        return said(environment.reset(task, seed), "reset")

    def step(self, number: int, action: str) -> dict[str, Any]:
        return said(self._instances[number].step(action), "step")

    def fork(self, number: int, copy: int) -> bool:
        made = self._instances[number].fork()
        if made is None:
            return False
        if made is self._instances[number]:
            raise TypeError("fork() must return another instance, not itself")
        self._instances[copy] = made
        return True

    def replay(self, number: int, task: Mapping[str, Any], seed: int, actions: list[str]) -> list[dict[str, Any]]:
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


def said(step: Any, method: str) -> dict[str, Any]:
    """What an environment answered, as JSON can say it.

    Raises:
        TypeError: when it is no step.
    """
    if not isinstance(step, StepResult):
        raise TypeError(f"{method}() must return a verl_hier.environments.base.StepResult, got {type(step).__name__}")
    return from_step(MASK.step(step))


def failed(error: BaseException) -> tuple[str, str]:
    """Kind and payload of the reply to a call that raised."""
    if isinstance(error, HierError):
        return "refused", cut(_text(error), LONGEST_ERROR)
    return "raised", f"{named(error)}{raised_at(error)}"


def named(error: BaseException) -> str:
    """Type and text of an exception."""
    return cut(f"{type(error).__name__}: {_text(error)}", LONGEST_ERROR)


def first_message(connection: socket.socket) -> tuple[str, Callable[[], tuple[Callable[[Any], Any], Any]]]:
    """Name of the factory, and a function that imports the factory and its options."""
    # The one pickle on this wire goes from the pool to its own child, which runs the recipe's code anyway.
    path, setup = pickle.loads(_next(connection))

    def load() -> tuple[Callable[[Any], Any], Any]:
        factory, options = pickle.loads(setup)
        return (factory.resolve() if isinstance(factory, LazyFunction) else factory), options

    return path, load


def not_started(error: Exception, what: str) -> tuple[str, list[str]]:
    """The reply to the first message when the factory cannot be had: kind, what is wrong, what cannot be imported."""
    kind, text = failed(error) if isinstance(error, HierError) else ("raised", f"{what}: {named(error)}")
    lacking = next((each for each in (error, error.__cause__) if isinstance(each, ImportError)), None)
    return kind, [text, "" if lacking is None else _text(lacking)]


def end_with(parent: int) -> None:
    """Let this process end with the one that started it."""
    _die_with(parent)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _next(connection: socket.socket) -> bytes:
    (size,) = HEADER.unpack(_receive(connection, HEADER.size))
    return _receive(connection, size)


def _answer(instances: Instances, method: str, number: int, arguments: Sequence[Any]) -> tuple[str, Any]:
    """Kind and payload of the reply to one call; no exception of an environment leaves this function."""
    try:
        return "done", getattr(instances, method)(number, *arguments)
    except (Exception, SystemExit) as error:
        instances.forget(number)
        return failed(error)


def _text(error: BaseException) -> str:
    try:
        return MASK.text(str(error))
    except Exception:
        return "its text cannot be read"


def _die_with(parent: int) -> None:
    """Let the kernel end this process with the one that started it: a hang in native code runs no thread of ours."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _leave_with(parent: int) -> None:
    """Exit when the parent has ended, even while an environment hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def serve(connection: socket.socket) -> None:
    """Answer calls one after the other until the pool closes the connection."""
    me = os.getpid()

    def reply(number: int, kind: str, payload: Any) -> None:
        connection.sendall(pack([number, me, kind, MASK(payload)]))

    path, load = first_message(connection)
    try:
        instances = Instances(*load())
    except Exception as error:
        reply(0, *not_started(error, f"cannot import {path!r} or its options"))
        return
    reply(0, "ready", None)
    try:
        while True:
            call, method, number, arguments = unpack(_next(connection))
            # If this process dies now, the pool knows during which call.
            reply(call, "started", None)
            answer = _answer(instances, method, number, arguments)
            if os.getpid() != me:
                # The world has forked, and this is the copy: what it says would be taken for an answer.
                os._exit(1)
            reply(call, *answer)
    except (EOFError, ConnectionError):
        instances.close_all()


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    end_with(parent)
    MASK.cover_output()
    with socket.socket(fileno=descriptor) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
