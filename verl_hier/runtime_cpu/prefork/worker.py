"""Runs in place of the Python interpreter: `worker.py <template's address> <interpreter> <script> <arguments …>`.

Asks the template for a fork that runs the script with this process's environment, working directory and standard
streams, and ends; without a template it becomes the interpreter. Only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

WAIT_S = 300.0
"""The template answers when its imports are done, which a busy machine delays."""
FORKED = b"y"


def ask(address: str, arguments: list[str]) -> bool:
    """Whether the template has made a fork that runs a script with these arguments."""
    place = {"folder": os.getcwd(), "niceness": os.getpriority(os.PRIO_PROCESS, 0)}
    request = json.dumps({"arguments": arguments, "environment": dict(os.environ), **place}).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(address)
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(request)
        return connection.recv(1) == FORKED
    return False


def main() -> None:
    """Have the script run in a fork of the template, or run it here."""
    address, interpreter, *arguments = sys.argv[1:]
    if not ask(address, arguments):
        os.execv(interpreter, [interpreter, *arguments])


if __name__ == "__main__":
    main()
