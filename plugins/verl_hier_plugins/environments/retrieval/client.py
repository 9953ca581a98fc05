"""Searches over HTTP: a retriever in Search-R1's form, and services that search the web.

A search has no effect, so one that was not answered is `Unavailable` and may be made again. That the recipe names
another server than it means can only be so until there was a good answer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import aiohttp

from verl_hier.environments.asynchronous import Unavailable, WrongServer
from verl_hier.http_clients import TooLarge, read_answer
from verl_hier.text import repaired
from verl_hier_plugins.environments.search.corpus import Found

KEPT_BYTES = 2**28
"""Memory of the answers that a collection keeps, beside their number."""
LONGEST_NAME, LONGEST_TEXT = 500, 50_000
"""Characters of a document's title and name, and of its text, that are kept."""
NOT_THE_KEY = (401, 403)
NOT_THE_QUERY = (400, 413, 414, 422)
"""Statuses of a query that a server does not take, such as one that is too long for it."""
LATER = (408, 425, 429)
"""Statuses below 500 with which a server asks for another try."""
PLAIN_QUERY = "capital of France"
"""A query that every server takes; where it refuses this one too, the recipe is wrong."""


class RefusedQuery(Exception):
    """The server takes other queries, and not this one."""


@dataclass(frozen=True)
class Form:
    """How a service is asked, and how it answers.

    Attributes:
        url: its address, empty where the user names it.
        request: keywords of an aiohttp request for a query and a number of documents.
        key: header of the key and what stands before it.
        entries: the documents in an answer, in its own form; raises LookupError, TypeError or AttributeError for what
            is no answer.
        read: one of them; raises the same, or ValueError, for what is no document.
        method: of the request.
    """

    url: str
    request: Callable[[str, int], dict[str, Any]]
    key: tuple[str, str]
    entries: Callable[[Any], Iterable[Any]]
    read: Callable[[Any], Found]
    method: str = "POST"


def _passage(entry: Any) -> Found:
    """A document of Search-R1's retriever, whose first line is its title, or one with `title` and `text`."""
    document = entry.get("document", entry)
    if "contents" in document:
        title, _, text = _words(document["contents"]).partition("\n")
    else:
        title, text = _words(document.get("title")), _words(document["text"])
    title, number = title.strip().strip('"'), document.get("id")
    return _found(title if number is None else f"{title} #{number}", title, text)


def _page(address: str, text: str) -> Callable[[Any], Found]:
    """Reads a page of a web search, whose address and text have these names."""
    return lambda page: _found(page[address], _words(page.get("title")), _words(page.get(text)))


def _words(given: Any) -> str:
    """A text of an answer, where null stands for none."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"a text, not {type(given).__name__}")
    return given or ""


def _found(name: str, title: str, text: str) -> Found:
    if not isinstance(name, str):
        raise TypeError(f"an address, not {type(name).__name__}")
    return Found(name[:LONGEST_NAME], title[:LONGEST_NAME], " ".join(text[:LONGEST_TEXT].split()))


FORMS = {
    "retriever": Form(
        "",
        lambda query, k: {"json": {"queries": [query], "topk": k, "return_scores": True}},
        ("Authorization", "Bearer "),
        lambda said: said["result"][0],
        _passage,
    ),
    "serper": Form(
        "https://google.serper.dev/search",
        lambda query, k: {"json": {"q": query, "num": k}},
        ("X-API-KEY", ""),
        lambda said: said.get("organic") or (),
        _page("link", "snippet"),
    ),
    "brave": Form(
        "https://api.search.brave.com/res/v1/web/search",
        lambda query, k: {"params": {"q": query, "count": str(k)}},
        ("X-Subscription-Token", ""),
        lambda said: (said.get("web") or {"results": ()})["results"] or (),
        _page("url", "description"),
        "GET",
    ),
    "tavily": Form(
        "https://api.tavily.com/search",
        lambda query, k: {"json": {"query": query, "max_results": k}},
        ("Authorization", "Bearer "),
        lambda said: said["results"] or (),
        _page("url", "content"),
    ),
}


def _size(found: Sequence[Found]) -> int:
    """Bytes of memory of the texts of documents."""
    return sum(getsizeof(text) for document in found for text in (document.name, document.title, document.text))


class RemoteCollection:
    """A collection behind a server."""

    def __init__(self, client: aiohttp.ClientSession, form: str, url: str, line: str, kept: int, key: str = "") -> None:
        """
        Args:
            client: makes the requests; has no time limit of its own.
            form: one of `FORMS`.
            url: address of the server; empty is that of the form.
            line: the option to name in errors.
            kept: number of the latest answers that are kept, where they are not larger than `KEPT_BYTES`.
            key: the user's key, if one is needed.
        """
        self._client = client
        self._form = FORMS[form]
        self._url = url or self._form.url
        self._line = f"hier.environment.{line}"
        header, before = self._form.key
        self._headers: Mapping[str, str] = {header: before + key} if key else {}
        self._answered = False
        self._room = kept
        self._kept: dict[tuple[str, int], Sequence[Found]] = {}
        self._kept_bytes = 0

    async def search(self, query: str, k: int) -> Sequence[Found]:
        """At most `k` documents, best first.

        Raises:
            RefusedQuery: when the server takes other queries and not this one.
            Unavailable: when it is not there, is full, or fails; once it has answered a query, also when it refuses the
                key or what it says is no answer.
            WrongServer: when it has not answered a query yet, and refuses the key, or what it says is no answer.
        """
        known = self._kept.get((query, k))
        if known is not None:
            return known
        try:
            found = (await self._answer(query, k))[:k]
        except WrongServer as error:
            if self._answered:
                raise Unavailable(str(error)) from error
            raise
        except RefusedQuery:
            if not self._answered:
                await self._require_plain(k)
            raise
        self._answered = True
        self._keep(query, k, found)
        return found

    def _keep(self, query: str, k: int, found: Sequence[Found]) -> None:
        """Keep an answer, and forget the oldest ones where there are too many."""
        self._kept_bytes += _size(found) - _size(self._kept.pop((query, k), ()))
        self._kept[query, k] = found
        while self._kept and (len(self._kept) > self._room or self._kept_bytes > KEPT_BYTES):
            self._kept_bytes -= _size(self._kept.pop(next(iter(self._kept))))

    async def _require_plain(self, k: int) -> None:
        """See that the server answers a plain query, so that it was the query that it has refused."""
        try:
            await self._answer(PLAIN_QUERY, k)
        except RefusedQuery as error:
            raise WrongServer(f"{self._line}: {error}, whatever it is asked.") from error
        self._answered = True

    async def _answer(self, query: str, k: int) -> list[Found]:
        return self._read(*await self._ask(query, k))

    async def _ask(self, query: str, k: int) -> tuple[int, bytes]:
        """Status and body of the answer."""
        form, headers = self._form, self._headers
        try:
            asked = self._client.request(form.method, self._url, headers=headers, **form.request(query, k))
            async with asked as answer:
                return answer.status, await read_answer(answer)
        except TooLarge as error:
            raise WrongServer(f"{self._line}: {self._url} is no such server; {error}.") from error
        except aiohttp.InvalidURL as error:
            raise WrongServer(f"{self._line}: {self._url!r} is no address.") from error
        except aiohttp.ClientResponseError as error:
            return error.status, b""
        except (aiohttp.ClientError, OSError, EOFError, zlib.error) as error:
            raise Unavailable(f"{self._url} does not answer ({error}); start the server of {self._line}") from error

    def _read(self, status: int, body: bytes) -> list[Found]:
        if status in LATER or status >= 500:
            raise Unavailable(f"{self._url} answers with status {status}")
        if status in NOT_THE_QUERY:
            raise RefusedQuery(f"{self._url} refuses a query with status {status}")
        if status in NOT_THE_KEY:
            advice = "check the key in the variable that hier.environment.key_env names"
            raise WrongServer(f"{self._line}: {self._url} refuses the request with status {status}; {advice}.")
        try:
            if status >= 300:
                raise ValueError(f"status {status}")
            entries = list(self._form.entries(repaired(json.loads(body))))
            read = [self._read_one(entry) for entry in entries]
            found = [each for each in read if isinstance(each, Found)]
            if entries and not found:
                raise ValueError("no document is one")
            return found
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            said = body[:80].decode("utf-8", "replace")
            raise WrongServer(
                f"{self._line}: {self._url} does not speak the expected protocol; it answers with status {status} and "
                f"{said!r}."
            ) from error

    def _read_one(self, entry: Any) -> Found | None:
        """A document; None for one that is malformed, without which the others are read."""
        try:
            return self._form.read(entry)
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
