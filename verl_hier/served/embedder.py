"""How alike two texts are to a served model: the cosine of their embeddings, each of which is asked for once."""

from __future__ import annotations

import asyncio
import math
from weakref import WeakKeyDictionary

from verl_hier.served.client import ChatClient

KEPT = 4096
"""Embeddings that are kept."""
MOST_UNHEARD = 20
"""Embeddings one after the other for which an endpoint that has answered before may be out of reach."""
_embedders: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], Embedder]] = WeakKeyDictionary()


class Embedder:
    """Compares texts by what one endpoint makes of them.

    Args:
        client: of the endpoint.
    """

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._asked: dict[str, asyncio.Future[list[float] | None]] = {}

    @classmethod
    def of(cls, url: str, model: str, option: str) -> Embedder:
        """That of this event loop, since connections cannot be shared between loops.

        Args:
            url, model, option: see `ChatClient`.
        """
        mine = _embedders.setdefault(asyncio.get_running_loop(), {})
        if (url, model) not in mine:
            mine[url, model] = cls(ChatClient(url, model, option=option, most_unheard=MOST_UNHEARD))
        return mine[url, model]

    async def likeness(self, left: str, right: str) -> float:
        """The cosine of the embeddings of two texts, from -1 to 1; -1 where the endpoint gives none."""
        one, two = await asyncio.gather(self._embedding(left), self._embedding(right))
        if one is None or two is None or len(one) != len(two):
            return -1.0
        length = math.hypot(*one) * math.hypot(*two)
        product = math.fsum(a * b for a, b in zip(one, two, strict=True))
        return max(-1.0, min(1.0, product / length)) if 0 < length < math.inf and math.isfinite(product) else -1.0

    async def _embedding(self, text: str) -> list[float] | None:
        if text not in self._asked:
            while len(self._asked) >= KEPT:
                del self._asked[next(iter(self._asked))]
            self._asked[text] = asyncio.ensure_future(self._client.embed(text))
        asked = self._asked[text]
        try:
            found = await asyncio.shield(asked)
        except BaseException:
            self._forget(text, asked)
            raise
        if found is None:
            self._forget(text, asked)
        return found

    def _forget(self, text: str, asked: asyncio.Future[list[float] | None]) -> None:
        """An endpoint that did not answer may do so the next time."""
        if self._asked.get(text) is asked and asked.done():
            del self._asked[text]
