"""The page over HTTP, for this machine alone and for reading alone."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from verl_hier.errors import HierError
from verl_hier.viewer.book import Book, dumps
from verl_hier.viewer.html import page, policy

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
MOST_TURNS = 500
"""Turns whose words are asked for at once."""
PATIENCE = 0.5
"""Seconds of reading until an overview is answered with what there is; the page asks for the rest."""
FIRST_PATIENCE = 0.05
"""The same for a page that shows nothing yet: enough for a small run, and a large one begins with its last step."""
LOOK_S = 0.2
"""Seconds between two looks whether the client of a search is still there."""
LONGEST_SEARCH = 200
"""Characters of a text that is searched."""


def application(book: Book, port: int, token: str) -> Starlette:
    """The application: below `/TOKEN`, `/`, `/overview`, `/search?words=…`, and of a group by `?step=…&uid=…` its
    `/group`, `/words` of `&turns=1,2,…` and `/why`.

    It answers GET and HEAD whose `Host` is this machine at the port, and whose `Origin`, if there is one, is the page.
    The token is in the address alone, so that other users of the machine, who can reach the port, do not read the run.
    """
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    names = {f"{name}:{port}" for name in (HOST, "localhost")}
    origins = {f"http://{name}" for name in names}
    turn = asyncio.Lock()

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            origin = request.headers.get("origin")
            host = request.headers.get("host", "").lower()
            if host not in names or (origin is not None and origin.lower() not in origins):
                found = _sentence("This page answers its own machine alone.", 403)
            elif not secrets.compare_digest(request.url.path.split("/")[1].encode(), token.encode()):
                found = _sentence("Open the whole address that `verl-hier view` has printed.", 403)
            else:
                try:
                    found = await answer(request)
                except HierError as error:
                    found = _sentence(str(error), 404)
            found.headers.update(_HEADERS)
            return found

        return answered

    def in_turn(answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            async with turn:
                return await asyncio.to_thread(answer, request)

        return answered

    async def search(request: Request) -> Response:
        """Reads all stored words, which may take minutes: other views do not wait, and it ends with its request."""
        over = threading.Event()
        words = request.query_params.get("words", "")[:LONGEST_SEARCH]
        async with turn:
            made = await asyncio.to_thread(book.search, words, over.is_set)
        gone = asyncio.create_task(_left(request))
        searching = asyncio.create_task(asyncio.to_thread(made))
        await asyncio.wait((gone, searching), return_when=asyncio.FIRST_COMPLETED)
        over.set()
        gone.cancel()
        return _json(dumps(await searching))

    def front(_: Request) -> Response:
        return HTMLResponse(page(book.name, source="'self'"), headers={"Content-Security-Policy": policy("'self'")})

    async def nothing(_: Request) -> Response:
        return _sentence("The page has nothing of this name.", 404)

    views: dict[str, Callable[[Request], Response]] = {
        "": front,
        "overview": lambda request: _overview(book, request),
        "group": lambda request: _group(book, request),
        "words": lambda request: _words(book, request),
        "why": lambda request: _why(book, request),
    }
    answers = {name: in_turn(view) for name, view in views.items()} | {"search": search}
    routes = [Route(f"/{{token}}/{name}", guarded(answer), methods=["GET"]) for name, answer in answers.items()]
    return Starlette(routes=[*routes, Route("/{rest:path}", guarded(nothing), methods=["GET"])])


async def _left(request: Request) -> None:
    """Wait until the client has closed the connection."""
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_S)


_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(book: Book, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted.

    Args:
        book: the rollouts.
        port: 0 for any that is free.
        ready: called with the address when the page can be opened.

    Raises:
        HierError: when the port is taken.
    """
    import uvicorn

    with socket.socket() as listening:
        try:
            listening.bind((HOST, port))
            listening.listen()  # before the address is said, so that whoever reads it is not refused
        except OSError as error:
            raise HierError(f"port {port} cannot be used ({error.strerror}); name another with --port.") from error
        taken = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        config = uvicorn.Config(application(book, taken, token), log_level="warning", access_log=False, lifespan="off")
        book.overview(patience=0.0)  # the last step, which is the first to be looked at
        ready(f"http://{HOST}:{taken}/{token}/")
        uvicorn.Server(config).run(sockets=[listening])


def _overview(book: Book, request: Request) -> Response:
    from starlette.responses import Response

    shown = request.query_params.get("stamp")
    found = book.overview(PATIENCE if shown else FIRST_PATIENCE)
    if shown == found["stamp"]:
        return Response(status_code=204)
    return _json(dumps(found))


def _group(book: Book, request: Request) -> Response:
    return _json(dumps(book.group(*_asked(request))))


def _words(book: Book, request: Request) -> Response:
    turns = request.query_params.get("turns", "").split(",")
    if len(turns) > MOST_TURNS or not all(turn.isdecimal() and len(turn) <= 12 for turn in turns):
        raise HierError(f"`turns` is not a list of at most {MOST_TURNS} numbers of turns.")
    return _json(dumps(book.words(*_asked(request), [int(turn) for turn in turns])))


def _why(book: Book, request: Request) -> Response:
    return _json(dumps(book.why(*_asked(request))))


def _asked(request: Request) -> tuple[int, str]:
    """Step and uid of the group that is asked for."""
    step = request.query_params.get("step", "")
    if not step.isdecimal() or len(step) > 12:
        raise HierError("`step` is not the number of a step.")
    return int(step), request.query_params.get("uid", "")


def _json(text: str) -> Response:
    from starlette.responses import Response

    return Response(text, media_type="application/json")


def _sentence(text: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status)
