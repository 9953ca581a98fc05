"""The endpoint: one HTTP server a process, at which every episode has a key of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from aiohttp import web

from verl_hier.text import parsed_json, without_halves
from verl_hier_plugins.environments.gateway.answers import PolicyAnswer
from verl_hier_plugins.environments.gateway.dialects import BY_PATH, CHAT, MESSAGES, Dialect
from verl_hier_plugins.environments.gateway.heard import Body
from verl_hier_plugins.environments.gateway.inbox import Inbox
from verl_hier_plugins.environments.gateway.messages import PolicyRequest, RefusedRequest, without_keys
from verl_hier_plugins.environments.gateway.options import GatewayOptions

AGENT_HEADER = "X-Agent"
THREADS = (
    ("", "thread-id", "x-codex-parent-thread-id"),
    ("", "x-session-id", "x-parent-session-id"),
    ("x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
)
"""Headers of Codex, OpenCode and Claude Code: the session, where its first agent has no name of its own, the agent that
asks, and the agent that began it, where that is not the first."""
BYTES_PER_CHARACTER = 8
"""Of a body, at most: JSON may write a character as six bytes, and has its own signs."""
LONG_BODY = 2**17
"""Bytes of JSON that takes milliseconds to parse."""
LONG_NEWS = 2**15
"""Bytes of what was not sent before that takes milliseconds to read."""
HEARTBEAT_S = 5.0
"""Seconds between two signs of life, which keep a connection open while the policy is waited for."""
EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
MESSAGES_PATH = next(path for path, dialect in BY_PATH.items() if dialect is MESSAGES)
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"


class Endpoint:
    """The server, and the episodes that it serves by their keys.

    Attributes:
        url: the base URL that clients are given.
        starts: limits how many agents are started at once.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self.options = options
        self.url = ""
        self.starts = asyncio.Semaphore(options.starts_at_once)
        self._inboxes: dict[str, Inbox] = {}

    def open(self) -> Inbox:
        """An inbox for an episode."""
        inbox = Inbox(self.options)
        self._inboxes[inbox.key] = inbox
        return inbox

    def close(self, inbox: Inbox) -> None:
        """Refuse the requests of an episode that wait, and further ones."""
        self._inboxes.pop(inbox.key, None)
        inbox.close()

    def failed(self, request: web.Request, refused: RefusedRequest) -> None:
        """Note that a request was refused, of which its agent may die."""
        inbox = self._inboxes.get(_key(request))
        if inbox is not None:
            inbox.failed(refused)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with a turn of the policy, in the dialect of the path."""
        inbox, dialect = self._inbox(request), BY_PATH[request.path]
        asked = await _read(request, inbox, dialect)
        reply = Reply(request, dialect, asked)
        try:
            answers = await inbox.ask(asked)
        except RefusedRequest as error:
            return await reply.refuse(error)
        finally:
            await reply.stop()
        try:
            return await reply.send(answers)
        except BaseException:  # the client has gone, or is about to
            inbox.unread(asked, answers)
            raise

    async def count(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/messages/count_tokens`."""
        inbox = self._inbox(request)
        asked = await _read(request, inbox, MESSAGES)
        return web.json_response({"input_tokens": inbox.tokens_of(asked)})

    async def models(self, request: web.Request) -> web.Response:
        """Answer `GET /v1/models`: there is one, and every name is taken for it; in the words of both makers."""
        self._inbox(request)
        model = {"id": "policy", "object": "model", "created": 1, "owned_by": "verl-hier"}
        model |= {"type": "model", "display_name": "policy", "created_at": "1970-01-01T00:00:01Z"}
        ends = {"first_id": "policy", "last_id": "policy", "has_more": False}
        return web.json_response({"object": "list", "data": [model], **ends})

    def _inbox(self, request: web.Request) -> Inbox:
        inbox = self._inboxes.get(_key(request))
        if inbox is None:
            raise RefusedRequest(
                "the key is that of no episode that is under way; it is in OPENAI_API_KEY when the agent's function is "
                "called, and where its module reads it earlier the recipe says hier.environment.preload: false.",
                401,
            )
        return inbox


def _key(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")


def _agent(request: web.Request) -> str:
    # What an agent says reaches the policy and files; no key of an episode does.
    return str(without_keys(without_halves(request.headers.get(AGENT_HEADER, "")))[:100])


def threads_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """What a program calls the agent that asks, and the agent that began it; empty where it says nothing."""
    for session, agent, above in THREADS:
        root, own = headers.get(session, ""), headers.get(agent, "")
        if root or own:
            return own or root, headers.get(above, "") or (root if own and own != root else "")
    return "", ""


async def _read(request: web.Request, inbox: Inbox, dialect: Dialect) -> PolicyRequest:
    """What a client asks; what takes long is done beside the event loop, which other episodes need meanwhile."""
    data, agent, threads = await request.read(), _agent(request), threads_of(request.headers)

    def parse() -> Any:
        try:
            given = parsed_json(data)
        except ValueError as error:
            raise RefusedRequest(f"the body of a request is no JSON in UTF-8: {str(error)[:200]}.") from error
        return Body(given, data) if isinstance(given, dict) else given

    def read() -> PolicyRequest:
        asked = inbox.read(dialect, body, agent).in_thread(*threads)
        _ = asked.settled  # known from here on; of a long conversation it takes as long as reading it
        return asked

    async with inbox.reading:
        body = parse() if len(data) < LONG_BODY else await asyncio.to_thread(parse)
        short = len(data) < LONG_NEWS or not isinstance(body, Body) or inbox.heard.new_bytes(body) < LONG_NEWS
        return read() if short else await asyncio.to_thread(read)


class Reply:
    """The answer to a request, whose connection is kept open once it is late: by events, or blanks before a body."""

    def __init__(self, request: web.Request, dialect: Dialect, asked: PolicyRequest) -> None:
        self._request, self._dialect, self._asked = request, dialect, asked
        self._headers = EVENTS if asked.stream else {"Content-Type": "application/json"}
        self._late: web.StreamResponse | None = None
        self._beating: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._begin)

    async def stop(self) -> web.StreamResponse | None:
        """Keep the connection open no longer; the response, where something of it was sent."""
        self._timer.cancel()
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        return self._late if self._late is not None and self._late.prepared else None

    async def send(self, answers: Sequence[PolicyAnswer]) -> web.StreamResponse:
        """Send the answers.

        Raises:
            ConnectionError: when the client has gone.
        """
        late = await self.stop()
        if not self._asked.stream:
            said = json.dumps(self._dialect.whole(self._asked, answers)).encode()
        else:
            opening = self._dialect.opening(self._asked) if late is None else ()
            said = b"".join([*opening, *self._dialect.events(self._asked, answers)])
        if late is None:
            late, said = web.Response(body=said, headers=self._headers), b""
            await late.prepare(self._request)
        await late.write_eof(said)
        return late

    async def refuse(self, error: RefusedRequest) -> web.StreamResponse:
        """Send a refusal behind what was sent.

        Raises:
            RefusedRequest: the refusal, where nothing was sent, so that it can still have its status.
        """
        late = await self.stop()
        if late is None:
            raise error
        stream, said = self._asked.stream, self._dialect.said(error)
        events = self._dialect.broken(self._asked, error) if stream else [json.dumps(said).encode()]
        with suppress(ConnectionError):
            await late.write_eof(b"".join(events))
        return late

    def _begin(self) -> None:
        self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        self._late = late = web.StreamResponse(headers=self._headers)
        with suppress(ConnectionError):  # whoever sends the answer sees it, too
            await late.prepare(self._request)
            stream, asked = self._asked.stream, self._asked
            signs = (self._dialect.waiting(asked, number) if stream else b" " for number in count())
            opening = b"".join(self._dialect.opening(asked)) if stream else b""
            await late.write(opening or next(signs))
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await late.write(next(signs))


ENDPOINT = web.AppKey("endpoint", Endpoint)


@web.middleware
async def _in_sentences(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors as clients of the dialect read them."""
    try:
        return await handler(request)
    except ConnectionError:  # the client has gone
        return web.Response()
    except RefusedRequest as error:
        refused = error
    except web.HTTPRequestEntityTooLarge:
        sentence = "the body of the request is too long; see hier.environment.request_characters."
        refused = RefusedRequest(sentence, too_long=True)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        known = ", ".join([*BY_PATH, COUNT_PATH, "GET /v1/models"])
        sentence = f"{request.method} {request.path[:200]} is not known here: there are {known}."
        refused = RefusedRequest(sentence, error.status)
    except Exception as error:
        request.app[ENDPOINT].failed(request, RefusedRequest(f"the endpoint failed: {error!r:.200}"))
        raise
    request.app[ENDPOINT].failed(request, refused)
    dialect = MESSAGES if request.path.startswith(MESSAGES_PATH) else CHAT
    return web.json_response(dialect.said(refused), status=refused.status)


@asynccontextmanager
async def serving(options: GatewayOptions) -> AsyncIterator[Endpoint]:
    """An endpoint at a free port of this machine's loopback."""
    endpoint = Endpoint(options)
    size = BYTES_PER_CHARACTER * options.request_characters + 2**16
    app = web.Application(middlewares=[_in_sentences], client_max_size=size)
    app[ENDPOINT] = endpoint
    for path in BY_PATH:
        app.router.add_post(path, endpoint.answer)
    app.router.add_post(COUNT_PATH, endpoint.count)
    app.router.add_get("/v1/models", endpoint.models)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield endpoint
    finally:
        await runner.cleanup()
