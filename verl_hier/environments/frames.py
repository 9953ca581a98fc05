"""Messages of `wire` on a connection that many calls share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from verl_hier.environments.child_process import Garbled
from verl_hier.environments.wire import HEADER, LARGEST_MESSAGE, pack


class Frames(asyncio.Protocol):
    """Messages on a connection, without the coroutines and the system call that asyncio's streams take for each.

    Attributes:
        lost: done when the connection has ended; its result says why if the other end broke the rules.
    """

    def __init__(self, transport: asyncio.WriteTransport, take: Callable[[bytes], None]) -> None:
        """
        Args:
            transport: of the connection, which this takes over.
            take: called with the body of each message; raises `Garbled` to end the connection.
        """
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transport = transport
        self._take = take
        self._read = bytearray()
        self._written: list[bytes] = []
        transport.set_protocol(self)

    def send(self, message: Any) -> None:
        """Send a message, in one piece with the others of this round of the event loop."""
        if not self._written:
            asyncio.get_running_loop().call_soon(self._flush)
        self._written.append(pack(message))

    def data_received(self, data: bytes) -> None:
        """Take the messages that are whole."""
        self._read += data
        begin = 0
        try:
            while len(self._read) - begin >= HEADER.size:
                (size,) = HEADER.unpack_from(self._read, begin)
                if size > LARGEST_MESSAGE:
                    raise Garbled(f"answered with {size} bytes")
                end = begin + HEADER.size + size
                if len(self._read) < end:
                    break
                self._take(bytes(self._read[begin + HEADER.size : end]))
                begin = end
        except Garbled as error:
            self._end(f"it {error}")
        del self._read[:begin]

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._end("")

    def _flush(self) -> None:
        written, self._written = self._written, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(written))

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
        self._transport.close()
