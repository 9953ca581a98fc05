"""HTTP clients of servers that a recipe names: retrievers, environments, tools, judges and served models.

Such a server is a stranger. A request carries the user's key and what the policy wrote, so it goes to the named address
alone: no redirect is followed to another one, and no cookie is kept. Of an answer at most `LARGEST_ANSWER` bytes are
read. Every client of ours is made here; plugins use the same functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

LARGEST_ANSWER = 2**24
"""Bytes of one answer that are read."""


class TooLarge(ValueError):
    """An answer is larger than `LARGEST_ANSWER`, or compressed so that its size is not known."""

    def __init__(self, why: str = f"the answer has more than {LARGEST_ANSWER} bytes") -> None:
        super().__init__(why)


def aiohttp_session(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """A session without limits of connections and time, for an environment, whose pool limits both.

    A redirect to another address, also of the handshake of a websocket, raises `aiohttp.ClientResponseError` with the
    redirect's status.

    Args:
        headers: of each request, such as keys.
    """
    import aiohttp

    async def refuse(session: Any, context: Any, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        answer = redirect.response
        answer.close()
        raise aiohttp.ClientResponseError(
            answer.request_info, (), status=answer.status, message="a redirect, which is not followed"
        )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        trace_configs=[trace],
    )


async def read_answer(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer.

    Raises:
        TooLarge: for more than `LARGEST_ANSWER` bytes; the rest is not read.
    """
    body = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        body += part
        if len(body) > LARGEST_ANSWER:
            answer.close()
            raise TooLarge
    return bytes(body)


def httpx_options(
    headers: Mapping[str, str] | None = None,
    hooks: tuple[Callable[[Any], Awaitable[None]], ...] = (),
    bounded_events: bool = False,
) -> dict[str, Any]:
    """Keywords of an `AsyncClient` of httpx or httpx2.

    An answer that is too large raises `TooLarge` while it is read, in whatever the caller's package makes of it.

    Args:
        headers: of each request, such as keys.
        hooks: called with each answer before it is read.
        bounded_events: whether the caller limits each event of a stream itself, and keeps none; such a stream has no
            end of its own, and no limit here.
    """

    async def bound(response: Any) -> None:
        # Decoded, an answer may be a thousand times as large as what was received.
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise TooLarge("the answer is compressed although the request asks for one that is not")
        if not (bounded_events and response.headers.get("content-type", "").startswith("text/event-stream")):
            response.stream = _bounded(response.stream)

    return {
        "follow_redirects": False,
        "headers": {**(headers or {}), "Accept-Encoding": "identity"},
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        "event_hooks": {"response": [*hooks, bound]},
    }


class _Bounded:
    """The stream of an answer, up to `LARGEST_ANSWER` bytes."""

    def __init__(self, stream: Any) -> None:
        self._whole = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._whole:
            size += len(part)
            if size > LARGEST_ANSWER:
                raise TooLarge
            yield part

    async def aclose(self) -> None:
        await self._whole.aclose()


def _bounded(stream: Any) -> Any:
    """A `_Bounded` of the stream's own kind, which httpx asks for."""
    return type("BoundedStream", (_Bounded, type(stream)), {})(stream)
