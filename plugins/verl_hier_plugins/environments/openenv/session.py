"""One session of an OpenEnv server: a websocket, which is one instance of its environment.

A socket that was lost is never opened again for the same session, because the server would give a new instance, as if
nothing had been done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from verl_hier.environments.asynchronous import SessionLost, Unavailable, WrongServer
from verl_hier.errors import RecipeError
from verl_hier.http_clients import LARGEST_ANSWER, read_answer

LATER = (408, 425, 429)
"""Statuses below 500 with which a server asks for another try."""
FULL = "CAPACITY_REACHED"
REFUSED = ("VALIDATION_ERROR", "INVALID_JSON")
URL = "hier.environment.url"


class Refused(Exception):
    """The server did not accept an action; nothing was done."""


class Session:
    """One instance of the environment."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        """
        Args:
            socket: an open websocket.
            url: address of the server, for errors.
        """
        self._socket = socket
        self._url = url

    @classmethod
    async def begin(cls, client: aiohttp.ClientSession, url: str) -> Session:
        """Connect to the server at an address.

        Raises:
            Unavailable: when it is not there, or full.
            WrongServer: when it has no websocket.
        """
        address = f"{url.rstrip('/')}/ws".replace("http", "ws", 1)
        try:
            return cls(await client.ws_connect(address, max_msg_size=LARGEST_ANSWER), url)
        except aiohttp.ClientResponseError as error:
            if error.status in LATER or error.status >= 500:
                raise Unavailable(f"{address} answers with status {error.status}") from error
            raise WrongServer(
                f"{URL}: {address} is no OpenEnv server; it answers with status {error.status}."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{address} does not answer ({error}); start the server of {URL}") from error

    async def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The data of the answer to a message.

        Args:
            kind: `reset`, `step` or `state`.
            data: arguments of a reset, or the action of a step.

        Raises:
            Refused: when the server does not accept the data.
            Unavailable: when it has no room for another instance.
            SessionLost: when the socket is closed.
            WrongServer: when what it says is no answer.
            RuntimeError: when its environment failed.
        """
        try:
            await self._socket.send_json({"type": kind} if data is None else {"type": kind, "data": dict(data)})
            message = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise SessionLost(f"the connection to {self._url} has ended: {error}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise SessionLost(f"{self._url} has closed the connection")
        try:
            said = json.loads(message.data)
            answer, data = said["type"], said["data"]
            if answer not in ("error", "observation", "state") or not isinstance(data, dict):
                raise ValueError(answer)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise WrongServer(f"{URL}: {self._url} is no OpenEnv server; it says {message.data[:80]!r}.") from error
        if answer == "error":
            self._raise(str(data.get("code", "")), str(data.get("message", "")))
        return dict(data)

    async def end(self) -> None:
        """Tell the server that the instance is not needed any more, and close the socket."""
        try:
            if not self._socket.closed:
                await self._socket.send_json({"type": "close"})
        except (aiohttp.ClientError, OSError):
            pass  # and the instance with it
        finally:
            await self._socket.close()

    def _raise(self, code: str, message: str) -> None:
        if code == FULL:
            advice = "raise its number of concurrent environments, or ask for fewer episodes at once"
            raise Unavailable(f"{self._url} has no room for another session ({message}); {advice}")
        if code in REFUSED:
            raise Refused(message)
        raise RuntimeError(f"{self._url} failed with {code}: {message}")


async def action_field(client: aiohttp.ClientSession, url: str) -> str:
    """The one field of an action that takes a text, as the server's schema says.

    Raises:
        Unavailable: when the server is not there.
        WrongServer: when what it says is no schema.
        RecipeError: when there is not exactly one.
    """
    address = f"{url.rstrip('/')}/schema"
    try:
        async with client.get(address) as answer:
            if answer.status in LATER or answer.status >= 500:
                raise Unavailable(f"{address} answers with status {answer.status}")
            said = json.loads(await read_answer(answer))
        fields = {name: of for name, of in said["action"]["properties"].items() if name != "metadata"}
    except aiohttp.ClientResponseError as error:
        raise WrongServer(f"{URL}: {address} is no OpenEnv server; it answers with status {error.status}.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{address} does not answer ({error}); start the server of {URL}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WrongServer(
            f"{URL}: {address} is no schema of an OpenEnv server; name hier.environment.action_field."
        ) from error
    texts = [name for name, of in fields.items() if isinstance(of, dict) and of.get("type") == "string"]
    if len(texts) != 1:
        raise RecipeError(
            f"hier.environment.action_field: an action of this server has the fields {', '.join(fields) or 'none'}; "
            "name the one that takes the policy's text."
        )
    return texts[0]
