"""Searches over HTTP: a retriever in Search-R1's form, and services that search the web.

A search has no effect, so one that was not answered is `Unavailable` and may be made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from verl_hier.environments.asynchronous import Unavailable
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.corpus import Found

LARGEST_ANSWER = 2**24
"""Bytes."""
NOT_THE_KEY = (401, 403)


@dataclass(frozen=True)
class Form:
    """How a service is asked, and how it answers.

    Attributes:
        url: its address, empty where the user names it.
        request: keywords of an aiohttp request for a query and a number of documents.
        key: header of the key and what stands before it.
        read: documents of the answer; raises LookupError, TypeError or ValueError for what is no answer.
        method: of the request.
    """

    url: str
    request: Callable[[str, int], dict[str, Any]]
    key: tuple[str, str]
    read: Callable[[Any], list[Found]]
    method: str = "POST"


def _passage(entry: Any) -> Found:
    """A document of Search-R1's retriever, whose first line is its title, or one with `title` and `text`."""
    document = entry.get("document", entry)
    if "contents" in document:
        title, _, text = document["contents"].partition("\n")
    else:
        title, text = document.get("title", ""), document["text"]
    title, number = title.strip().strip('"'), document.get("id")
    return Found(title if number is None else f"{title} #{number}", title, " ".join(text.split()))


def _page(title: str, address: str, text: str) -> Found:
    return Found(address, title, " ".join(text.split()))


FORMS = {
    "retriever": Form(
        "",
        lambda query, k: {"json": {"queries": [query], "topk": k, "return_scores": True}},
        ("Authorization", "Bearer "),
        lambda said: [_passage(entry) for entry in said["result"][0]],
    ),
    "serper": Form(
        "https://google.serper.dev/search",
        lambda query, k: {"json": {"q": query, "num": k}},
        ("X-API-KEY", ""),
        lambda said: [_page(page["title"], page["link"], page.get("snippet", "")) for page in said.get("organic", ())],
    ),
    "brave": Form(
        "https://api.search.brave.com/res/v1/web/search",
        lambda query, k: {"params": {"q": query, "count": str(k)}},
        ("X-Subscription-Token", ""),
        lambda said: [
            _page(page["title"], page["url"], page.get("description", ""))
            for page in said.get("web", {"results": ()})["results"]
        ],
        "GET",
    ),
    "tavily": Form(
        "https://api.tavily.com/search",
        lambda query, k: {"json": {"query": query, "max_results": k}},
        ("Authorization", "Bearer "),
        lambda said: [_page(page["title"], page["url"], page["content"]) for page in said["results"]],
    ),
}


class RemoteCollection:
    """A collection behind a server."""

    def __init__(self, client: aiohttp.ClientSession, form: str, url: str, line: str, kept: int, key: str = "") -> None:
        """
        Args:
            client: makes the requests; has no time limit of its own.
            form: one of `FORMS`.
            url: address of the server; empty is that of the form.
            line: the option to name in errors.
            kept: number of the latest answers that are kept.
            key: the user's key, if one is needed.
        """
        self._client = client
        self._form = FORMS[form]
        self._url = url or self._form.url
        self._line = f"hier.environment.{line}"
        header, before = self._form.key
        self._headers: Mapping[str, str] = {header: before + key} if key else {}
        self._room = kept
        self._kept: dict[tuple[str, int], Sequence[Found]] = {}

    async def search(self, query: str, k: int) -> Sequence[Found]:
        """At most `k` documents, best first.

        Raises:
            Unavailable: when the server is not there, is full, or fails.
            RecipeError: when it refuses the key, or what it says is no answer.
        """
        known = self._kept.get((query, k))
        if known is not None:
            return known
        found = self._kept[query, k] = self._read(*await self._ask(query, k))[:k]
        if len(self._kept) > self._room:
            del self._kept[next(iter(self._kept))]
        return found

    async def _ask(self, query: str, k: int) -> tuple[int, bytes]:
        """Status and body of the answer."""
        form = self._form
        try:
            asked = self._client.request(form.method, self._url, headers=self._headers, **form.request(query, k))
            async with asked as answer:
                body = bytearray()
                async for part in answer.content.iter_chunked(1 << 16):
                    body += part
                    if len(body) > LARGEST_ANSWER:
                        raise RecipeError(f"{self._line}: {self._url} answers with more than {LARGEST_ANSWER} bytes.")
                return answer.status, bytes(body)
        except aiohttp.InvalidURL as error:
            raise RecipeError(f"{self._line}: {self._url!r} is no address.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{self._url} does not answer ({error}); start the server of {self._line}") from error

    def _read(self, status: int, body: bytes) -> list[Found]:
        if status == 429 or status >= 500:
            raise Unavailable(f"{self._url} answers with status {status}")
        if status in NOT_THE_KEY:
            advice = "check the key in the variable that hier.environment.key_env names"
            raise RecipeError(f"{self._line}: {self._url} refuses the request with status {status}; {advice}.")
        try:
            if status >= 300:
                raise ValueError(f"status {status}")
            return self._form.read(json.loads(body))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            said = body[:80].decode("utf-8", "replace")
            raise RecipeError(
                f"{self._line}: {self._url} does not speak the expected protocol; it answers with status {status} and "
                f"{said!r}."
            ) from error
