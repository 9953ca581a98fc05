"""The page over HTTP, for this machine alone and for reading alone."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
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
LONGEST_SEARCH = 200
"""Characters of a text that is searched."""


def application(book: Book, port: int) -> Starlette:
    """The application: `/`, `/overview`, `/search?words=…`, and of a group by `?step=…&uid=…` its `/group`, `/words` of
    `&turns=1,2,…` and `/why`.

    It answers GET and HEAD whose `Host` is this machine at the port, and whose `Origin`, if there is one, is the page.
    """
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    names = {f"{name}:{port}" for name in (HOST, "localhost")}
    origins = {f"http://{name}" for name in names}
    turn = asyncio.Lock()

    def guarded(answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            origin = request.headers.get("origin")
            if request.headers.get("host") not in names or (origin is not None and origin not in origins):
                return _sentence("This page answers its own machine alone.", 403)
            async with turn:
                try:
                    found = await asyncio.to_thread(answer, request)
                except HierError as error:
                    found = _sentence(str(error), 404)
            found.headers.update(_HEADERS)
            return found

        return answered

    def front(_: Request) -> Response:
        return HTMLResponse(page(book.name, source="'self'"), headers={"Content-Security-Policy": policy("'self'")})

    answers: dict[str, Callable[[Request], Response]] = {
        "/": front,
        "/overview": lambda request: _overview(book, request),
        "/group": lambda request: _group(book, request),
        "/words": lambda request: _words(book, request),
        "/why": lambda request: _why(book, request),
        "/search": lambda request: _json(dumps(book.search(request.query_params.get("words", "")[:LONGEST_SEARCH]))),
    }
    return Starlette(routes=[Route(path, guarded(answer), methods=["GET"]) for path, answer in answers.items()])


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
        config = uvicorn.Config(application(book, taken), log_level="warning", access_log=False, lifespan="off")
        book.overview(patience=0.0)  # the last step, which is the first to be looked at
        ready(f"http://{HOST}:{taken}/")
        uvicorn.Server(config).run(sockets=[listening])


def _overview(book: Book, request: Request) -> Response:
    from starlette.responses import Response

    found = book.overview(PATIENCE)
    if request.query_params.get("stamp") == found["stamp"]:
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
