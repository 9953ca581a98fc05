"""vLLM's engine as verl's server calls it, asked for top-k log-probs and counts. Imports no vLLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

NAME = "vllm_topk"
"""What recipes call the server."""


@dataclass
class TopK:
    """What one request wants, and what came back.

    Attributes:
        count: how many of the likeliest tokens.
        found: for each generated token the likeliest (token id, log p), likeliest first.
    """

    count: int
    found: list[list[tuple[int, float]]] = field(default_factory=list)


_WANTED: ContextVar[TopK | None] = ContextVar("wanted", default=None)


def wanted(sampling_params: Mapping[str, Any]) -> int:
    """K of `logprobs=K`; 0 for verl's own True and False, which ask for the chosen token's or none."""
    value = sampling_params.get("logprobs")
    return 0 if value is None or isinstance(value, bool) else int(value)


@contextmanager
def asking(count: int) -> Iterator[TopK]:
    """The request that is made inside asks for the `count` best tokens (0: it is left as it is)."""
    top = TopK(count)
    token = _WANTED.set(top if count else None)
    try:
        yield top
    finally:
        _WANTED.reset(token)


class TopKEngine:
    """vLLM's `AsyncLLM` as verl's server calls it; all but `generate` is passed on.

    Attributes:
        counters: running totals over the requests that have ended.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.counters: Counter[str] = Counter(requests=0, prompt_tokens=0, cached_tokens=0, generated_tokens=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, *, sampling_params: Any, **request: Any) -> AsyncIterator[Any]:
        """See `AsyncLLM.generate`."""
        top = _WANTED.get()
        if top is not None:
            sampling_params.logprobs = top.count
        return self._watch(self._engine.generate(sampling_params=sampling_params, **request), top)

    async def _watch(self, outputs: AsyncIterator[Any], top: TopK | None) -> AsyncIterator[Any]:
        last = None
        async for last in outputs:
            yield last
        if last is None or not last.outputs:
            return
        self.counters["requests"] += 1
        self.counters["prompt_tokens"] += len(last.prompt_token_ids or ())
        self.counters["cached_tokens"] += last.num_cached_tokens or 0
        self.counters["generated_tokens"] += len(last.outputs[0].token_ids)
        if top is not None:
            top.found = [likeliest(position, top.count) for position in last.outputs[0].logprobs or ()]


def likeliest(position: Mapping[int, Any], count: int) -> list[tuple[int, float]]:
    """vLLM's log-probs at one position, {token id: (logprob, rank)}, as a list; the chosen token may be one more."""
    best = sorted(position.items(), key=lambda item: item[1].rank)
    return [(int(token), float(entry.logprob)) for token, entry in best[:count]]
