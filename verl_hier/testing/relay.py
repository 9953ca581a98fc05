"""A relay between a world and its server, which can be slow, cut its connections, and refuse new ones."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Relay:
    """Passes on TCP connections; `async with Relay(host, port) as relay:`.

    Attributes:
        port: where it listens, on 127.0.0.1.
        connections: number of those that are open.
    """

    def __init__(self, host: str, port: int) -> None:
        """
        Args:
            host, port: of the server.
        """
        self.port = 0
        self.connections = 0
        self._upstream = host, port
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    def hold(self) -> None:
        """Pass on nothing until `flow`."""
        self._flows.clear()

    def refuse(self) -> None:
        """End all connections, and each new one at once, until `flow`."""
        self._refuses = True
        self.cut()

    def flow(self) -> None:
        """Pass on everything, what was held too."""
        self._refuses = False
        self._flows.set()

    def cut(self) -> None:
        """End all connections."""
        for connection in list(self._open):
            connection.cancel()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._pass_on(reader, writer))
        self._open.add(connection)
        connection.add_done_callback(self._open.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writers = [writer]
        try:
            if self._refuses:
                return
            theirs, ours = await asyncio.open_connection(*self._upstream)
            writers.append(ours)
            there, back = (asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, ours), (theirs, writer)))
            try:
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            return
        finally:
            self.connections -= 1
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
