"""Variants of verl's clients of the rollout servers (verl/workers/rollout/llm_server.py).

`FullyAsyncLLMServerClient.generate`, of the asynchronous trainers, continues a request that a weight update aborted and
joins the parts of the answer. Of their `extra_fields` it keeps versions and cache hits only.

`LLMServerClient` calls the load balancer before and after each turn, which makes three actor calls of one.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

_PARTS: ContextVar[list[dict[str, Any]] | None] = ContextVar("parts", default=None)

PER_TOKEN = ("top_logprobs",)
"""Fields with an entry for each generated token: those of the parts are joined."""


class SingleServerClient(LLMServerClient):
    """verl's client for runs with exactly one server: it does not call the load balancer."""

    def __init__(self, server: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return "", self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """There is no load balancer to inform."""


class _Recording(LLMServerClient):
    """Collects the `extra_fields` of each part; sits between verl's two clients in the method resolution order."""

    async def generate(self, request_id: Any, **request: Any) -> TokenOutput:
        output = await super().generate(request_id, **request)
        parts = _PARTS.get()
        if parts is not None:
            parts.append(output.extra_fields)
        return output


class ResumingClient(FullyAsyncLLMServerClient, _Recording):
    """verl's resuming client that returns all `extra_fields`: joined where they belong to tokens, else the last."""

    async def generate(self, request_id: Any, **request: Any) -> TokenOutput:
        """See `LLMServerClient.generate`."""
        parts: list[dict[str, Any]] = []
        token = _PARTS.set(parts)
        try:
            output = await super().generate(request_id, **request)
        finally:
            _PARTS.reset(token)
        kept = output.extra_fields
        verls = set(kept)
        for name, value in ((name, value) for part in parts for name, value in part.items()):
            if name in PER_TOKEN:
                kept[name] = [*kept.get(name, ()), *value]
            elif name not in verls:
                kept[name] = value
        return output


class ClientOfAdapter:
    """A client of servers that several adapters share, whose requests are for one of them.

    Args:
        client: verl's client, which hands on words that it does not know to the server.
        adapter: what the servers call the adapter.
    """

    def __init__(self, client: Any, adapter: str) -> None:
        self._client = client
        self._adapter = adapter

    async def generate(self, request_id: Any, **request: Any) -> TokenOutput:
        """See `LLMServerClient.generate`."""
        output: TokenOutput = await self._client.generate(request_id, adapter=self._adapter, **request)
        return output
