"""Connections to an MCP server, each in a task of its own: a client has to be left in the task that entered it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult

from verl_hier.environments.asynchronous import SessionLost, Unavailable, WrongServer
from verl_hier.environments.wire import cut
from verl_hier.http_clients import httpx_options
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.mcp.tools import Tool, tool_of

BUSY = (429, 502, 503, 504)
SAMPLE = "verl_hier_plugins.environments.mcp.sample"
LONGEST_ANSWER = 200_000
"""Characters of one answer of a tool."""
MOST_TOOLS, MOST_SHOWN = 2_000, 2**24
"""Tools of a server, and characters of all of their descriptions."""


@dataclass(frozen=True)
class Said:
    """What a tool answered: its text, and whether it calls that an error."""

    text: str
    error: bool


class Connection:
    """One client of the server, which any task may call.

    Attributes:
        lost: whether the server has gone.
    """

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self.lost = False
        self._enter = enter
        self._over = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own())

    async def open(self) -> Connection:
        """Wait until the server has answered.

        Raises:
            Unavailable: when it is not there, or full.
            WrongServer: when it is no MCP server.
        """
        try:
            await asyncio.shield(self._client)
        except asyncio.CancelledError:
            self._owner.cancel()
            raise
        return self

    async def tools(self) -> dict[str, Tool]:
        """The tools of the server by name.

        Raises:
            WrongServer: when it lists more than an observation can show, or pages without an end.
        """
        tools: dict[str, Tool] = {}
        cursor, shown = None, 0
        for _ in range(MOST_TOOLS):
            page = await self._with_owner(self._client.result().list_tools(cursor=cursor))
            found = {tool.name: tool_of(tool) for tool in page.tools}
            tools |= found
            shown += sum(len(tool.shown()) for tool in found.values())
            cursor = page.next_cursor
            if len(tools) > MOST_TOOLS or shown > MOST_SHOWN:
                break
            if cursor is None:
                return tools
        raise WrongServer(
            f"hier.environment: the MCP server lists more tools than can be shown, {len(tools)} by now, with {shown} "
            f"characters; there may be {MOST_TOOLS}, with {MOST_SHOWN} characters."
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Said:
        """Call a tool.

        Raises:
            SessionLost: when the connection ended, or the server could not answer.
        """
        try:
            return _said(await self._with_owner(self._client.result().call_tool(name, dict(arguments))))
        except MCPError as error:
            if error.error.code == INVALID_PARAMS:
                return Said(cut(error.error.message, LONGEST_ANSWER), error=True)
            self.lost = True
            raise SessionLost(f"the server could not answer a call of {name}: {error.error.message}") from error

    async def close(self) -> None:
        """End the session."""
        self._over.set()
        if self._client.done():
            await asyncio.wait({self._owner})
        else:
            self._owner.cancel()
            await asyncio.gather(self._owner, return_exceptions=True)

    async def _own(self) -> None:
        try:
            async with self._enter() as client:
                self._client.set_result(client)
                await self._over.wait()
        except BaseException as error:
            if self._client.done():
                self.lost = True
                return  # whoever calls learns it
            self._client.set_exception(error if isinstance(error, Exception) else SessionLost("it was cancelled"))
            self._client.exception()

    async def _with_owner(self, call: Any) -> Any:
        """A call, or `SessionLost` as soon as the connection has ended."""
        calling = asyncio.ensure_future(call)
        try:
            await asyncio.wait({calling, self._owner}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                self.lost = True
                raise SessionLost("the connection to the MCP server has ended")
            return calling.result()
        except (httpx2.HTTPError, OSError, RuntimeError) as error:
            self.lost = True
            raise SessionLost(f"the connection to the MCP server has ended: {error}") from error
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)


def connector(options: McpOptions) -> Callable[[], AbstractAsyncContextManager[Client]]:
    """What enters a client of the server that the options name."""
    # A server keeps its sessions apart only where it knows the older protocol; the newer one has none.
    mode = "legacy" if options.state == "session" else "auto"
    return lambda: _over_http(options, mode) if options.url else _over_stdio(options, mode)


@asynccontextmanager
async def _over_http(options: McpOptions, mode: str) -> AsyncIterator[Client]:
    statuses: list[int] = []

    async def note(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    headers = {name: os.environ[variable] for name, variable in options.headers_env.items()}
    # One HTTP client a session: sharing one makes calls wait for each other.
    client = httpx2.AsyncClient(timeout=None, **httpx_options(headers, (note,), bounded_events=True))
    async with client, _entering(lambda: f"hier.environment.url: {options.url}", statuses) as stack:
        yield await stack.enter_async_context(
            Client(streamable_http_client(options.url, http_client=client), mode=mode, cache=None)
        )


@asynccontextmanager
async def _over_stdio(options: McpOptions, mode: str) -> AsyncIterator[Client]:
    words = shlex.split(options.command) or [sys.executable, "-m", SAMPLE]
    named = {name: os.environ[name] for name in options.secrets}
    if not options.command:
        named["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    server = StdioServerParameters(command=words[0], args=words[1:], env=named)
    async with _entering(lambda: f"hier.environment.command: {shlex.join(words)}", []) as stack:
        yield await stack.enter_async_context(Client(server, mode=mode, cache=None))


@asynccontextmanager
async def _entering(where: Callable[[], str], statuses: list[int]) -> AsyncIterator[contextlib.AsyncExitStack]:
    """Tell why a server could not be entered; what happens later is left as it is."""
    stack = contextlib.AsyncExitStack()
    entered = False
    try:
        async with stack:
            yield stack
            entered = True
    except BaseException as error:
        causes = list(_causes(error))
        if entered or not all(isinstance(cause, Exception) for cause in causes):
            raise
        cause, status = causes[0], statuses[-1] if statuses else 0
        if isinstance(cause, httpx2.HTTPError) or status in BUSY:
            why = f"answers with status {status}" if status in BUSY else f"does not answer ({cause}); start the server"
            raise Unavailable(f"{where()} {why}") from error
        if isinstance(cause, OSError):
            raise WrongServer(f"{where()} cannot be started: {cause}.") from error
        told = f" (status {status})" if status else ""
        raise WrongServer(f"{where()} does not speak MCP{told}: {cause}.") from error


def _causes(error: BaseException) -> list[BaseException]:
    """The exceptions of a group of groups."""
    inner = getattr(error, "exceptions", None)
    return [error] if inner is None else [cause for each in inner for cause in _causes(each)]


def _said(result: CallToolResult) -> Said:
    """An answer as text: its texts, those of its resources, and the addresses of links; other contents are named.

    A server may put what it found into `structuredContent` alone, which is shown as JSON where no part has a text.
    """
    parts = [_text_of(part) for part in result.content]
    text = "\n".join(
        f"[{part.type}]" if said is None else said for part, said in zip(result.content, parts, strict=True)
    )
    if not any(parts) and result.structured_content is not None:
        text = "\n".join(filter(None, (text, json.dumps(result.structured_content, ensure_ascii=False))))
    return Said(cut(text, LONGEST_ANSWER), bool(result.is_error))


def _text_of(part: Any) -> str | None:
    """The text of a part of an answer, that of a resource in it, or the address of a link; None where it has none."""
    resource = getattr(part, "resource", None)
    found = (getattr(part, "text", None), getattr(resource, "text", None), getattr(part, "uri", None))
    return next((str(text) for text in found if text is not None), None)
