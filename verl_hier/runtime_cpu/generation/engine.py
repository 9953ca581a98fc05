"""Continuous batching: which sequences are computed in a step, what is reused, when they end."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from verl_hier.runtime_cpu.generation.model import SlotModel
from verl_hier.runtime_cpu.generation.prefix_cache import PrefixCache, common_prefix
from verl_hier.runtime_cpu.generation.request import Request
from verl_hier.runtime_cpu.generation.sampling import Sampled, sample

logger = logging.getLogger(__name__)

# A request waits one forward pass for another one with the same beginning if that saves at least this share of what it
# would compute itself: small enough that what is computed twice hardly shows, large enough that long prompts which
# have a few tokens in common by chance are computed side by side.
_WORTH_WAITING = 0.02


class Tokenizer(Protocol):
    """The one method of a tokenizer that stop strings need."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


@dataclass
class Counters:
    """What the engine has done since it was made.

    Attributes:
        requests: requests that were queued.
        prompt_tokens, cached_tokens: tokens of their prompts, and how many of these came from the cache.
        prefill_tokens: positions that were computed to admit requests, after a preemption once more.
        decode_tokens: positions that were computed to go on with running requests, one a token. With `prefill_tokens`
            it makes all that the model computed, padding aside.
        generated_tokens: sampled tokens.
        decode_steps: steps with at least one running request.
        preempted: requests that had to start over.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    preempted: int = 0

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class GenerationEngine:
    """Runs requests to their end, one `step()` at a time; not thread-safe, knows nothing of asyncio.

    Running requests occupy the slots 0 .. n-1 in the order of `running`.

    Args:
        model: The model on its slots.
        max_sequences: Most requests that run at once; others wait.
        max_batched_tokens: Most tokens, padding included, in one forward pass over prompts.
        prefix_capacity: Tokens kept in the prefix cache; 0 switches it off.
        tokenizer: Needed for requests with stop strings only.
        vocab_limit: Token ids from here on are never chosen.
        deterministic: Compute each sequence alone and reuse nothing, so that its tokens are a function of its seed,
            its prompt and the weights. Costs a forward pass for each sequence and token.
        on_finish: Called with each request that has ended.
    """

    def __init__(
        self,
        model: SlotModel,
        *,
        max_sequences: int,
        max_batched_tokens: int,
        prefix_capacity: int,
        vocab_limit: int,
        on_finish: Callable[[Request], None],
        tokenizer: Tokenizer | None = None,
        deterministic: bool = False,
    ) -> None:
        self.model = model
        self.deterministic = deterministic
        self.counters = Counters()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._capacity = 0 if deterministic else prefix_capacity
        self._caches: dict[str | None, PrefixCache] = {}
        self._max_sequences = max_sequences
        self._max_batched_tokens = max_batched_tokens
        self._vocab_limit = vocab_limit
        self._tokenizer = tokenizer
        self._on_finish = on_finish

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def cached_tokens(self) -> int:
        """Tokens in the prefix caches."""
        return sum(cache.tokens for cache in self._caches.values())

    def forget_prefixes(self) -> None:
        """Empty the prefix caches."""
        self._caches.clear()

    def _cache(self, request: Request) -> PrefixCache:
        """Prefixes of the request's adapter: the keys and values of others are not its own."""
        return self._caches.setdefault(request.adapter, PrefixCache(self._capacity))

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: If it has stop strings and the engine no tokenizer, or if it is too long for the KV memory.
        """
        if not self.model.slots.fits(1, request.final_length):
            raise ValueError(
                f"A sequence of up to {request.final_length} tokens needs more than kv_cache_gib of keys and values; "
                "raise actor_rollout_ref.rollout.engine_kwargs.transformers.kv_cache_gib, or lower max_tokens."
            )
        if request.params.stop and self._tokenizer is None:
            raise ValueError(
                "Stop strings need a tokenizer and the model path has none; use stop_token_ids, or set "
                "actor_rollout_ref.model.tokenizer_path."
            )
        self.counters.requests += 1
        self.counters.prompt_tokens += request.prompt_length
        self.waiting.append(request)

    @torch.inference_mode()
    def abort(self, request_ids: set[str] | None = None) -> list[str]:
        """End requests with what they have generated so far; all of them if no ids are given."""
        chosen = [r for r in (*self.running, *self.waiting) if request_ids is None or r.request_id in request_ids]
        for request in chosen:
            request.finish_reason = "abort"
        self.waiting = [r for r in self.waiting if r.finish_reason is None]
        self._retire()
        for request in chosen:
            self._on_finish(request)
        return [r.request_id for r in chosen]

    def drop_caches(self) -> None:
        """Forget all keys and values, because the weights change or memory is wanted; running requests start over.

        They keep the tokens they have, and compute the keys and values of these again.
        """
        for request in self.running:
            request.computed = 0
            request.preempted += 1
        self.counters.preempted += len(self.running)
        self.waiting = [*self.running, *self.waiting]
        self.running = []
        self.forget_prefixes()
        self.model.slots.release()

    @torch.inference_mode()
    def step(self) -> None:
        """Admit waiting requests and compute their prompts, then compute one token for each running request."""
        self._admit()
        if self.running:
            for first, batch in self._decode_batches():
                logits = self._forward(first, batch, [r.tokens[-1:] for r in batch])
                self.counters.decode_tokens += len(batch)
                self._append(batch, logits)
            self.counters.decode_steps += 1
            self._finish_ended()

    def _decode_batches(self) -> list[tuple[int, list[Request]]]:
        if not self.deterministic:
            return [(0, list(self.running))]
        return [(slot, [request]) for slot, request in enumerate(self.running)]

    # Prompts

    def _admit(self) -> None:
        while (room := self._room()) > 0:
            wave = self._next_wave(room)
            for first, batch in self._place(wave):
                self._prefill(first, batch)
            self._finish_ended()

    def _room(self) -> int:
        """How many of the waiting requests can start now, in their order: by number, and by memory at full length."""
        limit = self._max_sequences - len(self.running)
        longest = max((r.final_length for r in self.running), default=0)
        for count, request in enumerate(self.waiting[:limit]):
            longest = max(longest, request.final_length)
            if not self.model.slots.fits(len(self.running) + count + 1, longest):
                return count
        return min(limit, len(self.waiting))

    def _next_wave(self, room: int) -> list[Request]:
        """Take from the queue the requests to compute now.

        Of several requests with a common beginning that is not cached yet, one goes first and the others follow in
        the next wave, when they find it in the cache.
        """
        wave, later = self.waiting[:room], self.waiting[room:]
        if self._capacity:
            wave, postponed = self._split_by_prefix(wave)
            later = postponed + later
        self.waiting = later
        return wave

    def _split_by_prefix(self, requests: Sequence[Request]) -> tuple[list[Request], list[Request]]:
        now: list[Request] = []
        postponed: list[Request] = []
        # In the order of their tokens, requests with a common beginning are neighbours.
        for request in sorted(requests, key=lambda r: (r.adapter or "", r.tokens)):
            alike = bool(now) and now[-1].adapter == request.adapter
            shared = min(common_prefix(now[-1].tokens, request.tokens), request.reusable) if alike else 0
            known = self._lookup(request) if shared else 0
            saved = shared - known
            worth = saved > 0 and saved >= _WORTH_WAITING * (len(request.tokens) - known)
            (postponed if worth else now).append(request)
        return now, postponed

    def _place(self, wave: list[Request]) -> list[tuple[int, list[Request]]]:
        """Give each request the next free slot, fill in what the cache knows, and cut the wave into batches."""
        found = [self._lookup(request) for request in wave]
        order = sorted(range(len(wave)), key=lambda i: len(wave[i].tokens) - found[i])
        batches: list[tuple[int, list[Request]]] = []
        longest = max(r.final_length for r in (*self.running, *wave))
        self.model.slots.reserve(len(self.running) + len(wave), longest)
        for request in (wave[i] for i in order):
            slot = len(self.running)
            self._fill_from_cache(slot, request)
            self.running.append(request)
            if batches and self._fits(batches[-1][1], request):
                batches[-1][1].append(request)
            else:
                batches.append((slot, [request]))
        return batches

    def _lookup(self, request: Request) -> int:
        """How many tokens of a request need not be computed; all of them only if their logits are known too."""
        if not self._capacity:
            return 0
        cache = self._cache(request)
        known = cache.match_length(request.tokens[: request.reusable])
        if known == len(request.tokens) and cache.logits.get(request.tokens) is None:
            return known - 1
        return known

    def _fill_from_cache(self, slot: int, request: Request) -> None:
        if known := self._lookup(request):
            for keys, values in self._cache(request).lookup(request.tokens[:known]):
                self.model.slots.write(slot, request.computed, keys, values)
                request.computed += keys.shape[1]
        if request.cached_tokens is None:
            request.cached_tokens = min(request.computed, request.prompt_length)
            self.counters.cached_tokens += request.cached_tokens

    def _fits(self, batch: list[Request], request: Request) -> bool:
        """Whether a request may share a forward pass: within the budget, and not mostly padding."""
        if self.deterministic or any(r.needs_prompt_logits for r in (batch[-1], request)):
            return False
        if (batch[-1].remaining == 0) != (request.remaining == 0):
            return False
        padded = (len(batch) + 1) * request.remaining
        real = sum(r.remaining for r in batch) + request.remaining
        return padded <= self._max_batched_tokens and (padded <= 2 * real or padded <= 256)

    def _prefill(self, first: int, batch: list[Request]) -> None:
        self.counters.prefill_tokens += sum(r.remaining for r in batch)
        if not batch[0].remaining:
            # `_fits` keeps these apart, and they come first, so that nothing has been evicted since `_lookup`.
            self._append(batch, torch.stack([self._known_logits(r) for r in batch]))
            return
        if batch[0].needs_prompt_logits:
            request = batch[0]
            logits = self._forward(first, batch, [request.tokens[request.computed :]], all_logits=True)
            _record_prompt_logprobs(request, logits)
            logits = logits[-1:]
        else:
            if len(batch) == 1:
                self._compute_in_chunks(first, batch[0])
            logits = self._forward(first, batch, [r.tokens[r.computed :] for r in batch])
        for row, request in enumerate(batch):
            self._remember(first + row, request, len(request.tokens))
            self._cache(request).logits.put(request.tokens, logits[row])
        self._append(batch, logits)

    def _forward(
        self, first: int, batch: list[Request], tokens: list[list[int]], all_logits: bool = False
    ) -> torch.Tensor:
        """A pass over new tokens of requests in slots from `first` on, each with its adapter."""
        starts, adapters = [r.computed for r in batch], [r.adapter for r in batch]
        return self.model.forward(first, tokens, starts, all_logits, adapters)

    def _known_logits(self, request: Request) -> torch.Tensor:
        row = self._cache(request).logits.get(request.tokens)
        assert row is not None
        return row

    def _compute_in_chunks(self, slot: int, request: Request) -> None:
        """Bring a prompt that is longer than the budget down to one forward pass."""
        while request.remaining > self._max_batched_tokens:
            stop = request.computed + self._max_batched_tokens
            self._forward(slot, [request], [request.tokens[request.computed : stop]])
            request.computed = stop

    def _remember(self, slot: int, request: Request, length: int) -> None:
        """Put the first `length` tokens of a slot, which must be computed, into the prefix cache."""
        if not self._capacity:
            return
        tokens, cache = request.tokens[:length], self._cache(request)
        known = cache.match_length(tokens)
        keys, values = self.model.slots.read(slot, known, length)
        cache.insert(tokens, keys, values, known)

    # Tokens

    def _append(self, batch: list[Request], logits: torch.Tensor) -> None:
        """Sample one token for each request of `batch` from logits [len(batch), vocabulary]."""
        sampled = sample(logits, batch, self._vocab_limit)
        for row, request in enumerate(batch):
            request.computed = len(request.tokens)
            request.tokens.append(sampled.tokens[row])
            self._record(request, sampled, row)
        self.counters.generated_tokens += len(batch)

    def _record(self, request: Request, sampled: Sampled, row: int) -> None:
        params = request.params
        if params.logprobs is not None:
            request.log_probs.append(sampled.log_probs[row])
            if params.logprobs:
                request.top_logprobs.append(sampled.top[row])
        token, length = sampled.tokens[row], request.output_length
        if length >= params.min_tokens:
            if token in request.stop_ids:
                request.finish_reason, request.matched_stop = "stop", token
            elif params.stop and (text := self._stop_string(request)) is not None:
                request.finish_reason, request.matched_stop = "stop", text
        if request.finish_reason is None and length >= params.max_tokens:
            request.finish_reason = "length"

    def _stop_string(self, request: Request) -> str | None:
        """The stop string that the last token has completed, if any.

        Only the end of the output is decoded: a token has at least one byte and a character at most four.
        """
        assert self._tokenizer is not None
        params = request.params
        window = 4 * max(map(len, params.stop)) + 8
        text = self._tokenizer.decode(request.output[-window:], skip_special_tokens=params.skip_special_tokens)
        return next((stop for stop in params.stop if stop in text), None)

    def _finish_ended(self) -> None:
        ended = [r for r in self.running if r.finish_reason is not None]
        if ended:
            self._retire()
            for request in ended:
                self._on_finish(request)

    def _retire(self) -> None:
        """Remove ended requests from their slots; the last running one moves into each gap."""
        for slot in reversed(range(len(self.running))):
            request = self.running[slot]
            if request.finish_reason is None:
                continue
            self._remember(slot, request, request.computed)
            last = self.running.pop()
            if last is not request:
                self.model.slots.move(len(self.running), slot, last.computed)
                self.running[slot] = last


def _record_prompt_logprobs(request: Request, logits: torch.Tensor) -> None:
    """Fill the log-probabilities of a prompt from logits [new, vocabulary], those of the tokens from `computed` on.

    `prompt_logprobs` gets the layout that verl reads from vLLM: entry i belongs to prompt token i + 1 (the first has no
    probability), a dummy closes the list; with `prompt_logprobs=0` each entry has the prompt's own token, with K the K
    best. `prompt_token_logprobs` has the prompt's own tokens in any case, without a dummy. Both begin at
    `prompt_logprobs_start`; all are taken at `prompt_logprobs_temperature`.
    """
    count = request.params.prompt_logprobs or 0
    start = max(request.params.prompt_logprobs_start, 1)
    rows = logits[start - 1 - request.computed : request.prompt_length - 1 - request.computed]
    log_probs = torch.log_softmax(rows.float() / request.params.prompt_logprobs_temperature, dim=-1)
    following = torch.tensor(request.tokens[start : request.prompt_length], dtype=torch.long).unsqueeze(1)
    own = log_probs.gather(1, following)
    values, ids = (own, following) if count == 0 else log_probs.topk(count, dim=-1)
    width = max(count, 1)
    request.prompt_token_logprobs = own.squeeze(1).tolist()
    request.prompt_logprobs = ([*ids.tolist(), [0] * width], [*values.tolist(), [0.0] * width])
