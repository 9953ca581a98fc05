"""The endpoint: one HTTP server a process, at which every episode has a key of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from verl_hier.text import read_json, without_halves
from verl_hier_plugins.environments.gateway.messages import KEY, ChatRequest, RefusedRequest, read_request, without_keys
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.gateway.streams import DONE, HEARTBEAT, HEARTBEAT_S, chat_events, event

AGENT_HEADER = "X-Agent"
BYTES_PER_CHARACTER = 8
"""Of a body, at most: JSON may write a character as six bytes, and has its own signs."""


class Asked:
    """A request of an agent that waits for the policy.

    Attributes:
        request: the request.
        answer: the body of the answer, once there is one.
        left: whether its client has gone; the policy is not asked for one that does not come back.
    """

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.left = False


class Inbox:
    """The requests of one episode.

    Attributes:
        key: the secret that its agent shows.
        waiting: requests that the policy has not been asked yet, in the order of their arrival.
        changed: set when one arrives.
        fault: how the wire has failed its agent since the last answer, in a sentence; empty where it has not.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self.key = f"{KEY}{secrets.token_urlsafe(24)}"
        self.waiting: list[Asked] = []
        self.changed = asyncio.Event()
        self.fault = ""
        self._options = options
        self._unheard: dict[str, Asked] = {}
        self._unanswered: set[Asked] = set()
        self._open = 0
        self._closed = False

    def read(self, body: Any, agent: str) -> ChatRequest:
        """A request that may be asked.

        Raises:
            RefusedRequest: when it is none, too many wait, or the episode is over.
        """
        if self._closed:
            raise _over()
        request = read_request(body, agent, self._options.request_characters)
        if self._open >= self._options.most_at_once:
            raise RefusedRequest(
                f"{self._open} requests of this agent wait already; raise hier.environment.most_at_once.", 429
            )
        return request

    async def ask(self, request: ChatRequest) -> Any:
        """Wait for the answer to a request.

        A client that went away and asks the same once more, as clients do after a time-out, gets the answer to its
        first request.

        Raises:
            RefusedRequest: when the episode is over or ends meanwhile.
        """
        if self._closed:
            raise _over()
        asked = self._unheard.pop(request.digest, None)
        if asked is None:
            asked = Asked(request)
            self.waiting.append(asked)
            self._unanswered.add(asked)
            asked.answer.add_done_callback(lambda _: self._unanswered.discard(asked))
        asked.left = False
        self.changed.set()
        self._open += 1
        try:
            answer = await asyncio.shield(asked.answer)
            self.fault = ""
            return answer
        except asyncio.CancelledError:
            asked.left = True
            if self._open == 1:  # else the answer to another one may have ended the agent
                self.fault = "its client went away before it was answered"
            self._unheard[request.digest] = asked
            raise
        finally:
            self._open -= 1

    def close(self) -> None:
        """Refuse what waits, so that a program that the agent has left behind keeps no connection, and what comes."""
        self._closed = True
        for asked in [*self._unanswered]:
            if not asked.answer.done():
                asked.answer.set_exception(_over())
                asked.answer.exception()  # its client may have gone
        self.waiting.clear()


def _over() -> RefusedRequest:
    return RefusedRequest("the episode of this key is over.", 410)


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

    def refused(self, request: web.Request, sentence: str) -> None:
        """Note that a request was refused, of which its agent may die."""
        inbox = self._inboxes.get(_key(request))
        if inbox is not None:
            inbox.fault = sentence

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1/chat/completions`."""
        inbox = self._inbox(request)
        try:
            body = read_json(await request.read())
        except ValueError as error:
            raise RefusedRequest(f"the body of a request is no JSON in UTF-8: {str(error)[:200]}.") from error
        # What an agent says reaches the policy and files; no key of an episode does.
        agent = without_keys(without_halves(request.headers.get(AGENT_HEADER, "")))[:100]
        asked = inbox.read(without_keys(body), agent)
        return await _streamed(request, inbox, asked) if asked.stream else web.json_response(await inbox.ask(asked))

    async def models(self, request: web.Request) -> web.Response:
        """Answer `GET /v1/models`: there is one, and every name is taken for it."""
        self._inbox(request)
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model", "created": 1}]})

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
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


async def _streamed(request: web.Request, inbox: Inbox, asked: ChatRequest) -> web.StreamResponse:
    """Answer with events, and with comments until there is an answer."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    answering = asyncio.ensure_future(inbox.ask(asked))
    try:
        await response.prepare(request)
        while not (await asyncio.wait({answering}, timeout=HEARTBEAT_S))[0]:
            await response.write(HEARTBEAT)
        try:
            for each in chat_events(answering.result(), asked.stream_usage):
                await response.write(each)
        except RefusedRequest as error:  # the status is sent already
            await response.write(event({"error": _said(str(error), error.status)}))
            await response.write(DONE)
        await response.write_eof()
    except ConnectionError:
        pass  # the client has gone
    finally:
        answering.cancel()
    return response


ENDPOINT = web.AppKey("endpoint", Endpoint)


@web.middleware
async def _in_sentences(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors as clients of OpenAI read them."""
    try:
        return await handler(request)
    except RefusedRequest as error:
        sentence, status = str(error), error.status
    except web.HTTPRequestEntityTooLarge:
        sentence, status = "the body of the request is too long; see hier.environment.request_characters.", 413
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        known = "there are POST /v1/chat/completions and GET /v1/models; tell the framework to use chat completions."
        sentence, status = f"{request.method} {request.path[:200]} is not known here: {known}", error.status
    except Exception as error:
        request.app[ENDPOINT].refused(request, f"the endpoint failed: {error!r:.200}")
        raise
    request.app[ENDPOINT].refused(request, sentence)
    return _error(sentence, status)


def _error(sentence: str, status: int) -> web.Response:
    return web.json_response({"error": _said(sentence, status)}, status=status)


def _said(sentence: str, status: int) -> dict[str, str | None]:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    return {"message": sentence, "type": kind, "param": None, "code": None}


@asynccontextmanager
async def serving(options: GatewayOptions) -> AsyncIterator[Endpoint]:
    """An endpoint at a free port of this machine's loopback."""
    endpoint = Endpoint(options)
    size = BYTES_PER_CHARACTER * options.request_characters + 2**16
    app = web.Application(middlewares=[_in_sentences], client_max_size=size)
    app[ENDPOINT] = endpoint
    app.router.add_post("/v1/chat/completions", endpoint.chat)
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
