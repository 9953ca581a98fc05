"""What one request asks for, and what is known about it while it runs."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Draws are made in blocks, so that a request with a large `max_tokens` does not pay for draws it never uses.
_DRAW_BLOCK = 64

# Accepted because callers written for vLLM or SGLang pass them; they change nothing in token-in-token-out generation.
_IGNORED = frozenset(
    {"n", "detokenize", "spaces_between_special_tokens", "include_stop_str_in_output", "extra_args", "do_sample"}
)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request, in vLLM's vocabulary.

    `logprobs` is None (no log-probabilities), 0 (those of the chosen tokens) or K (the K best tokens as well).
    `seed` None means: drawn by the engine (or derived from the prompt in deterministic mode).
    `prompt_logprobs` is as in vLLM; with `prompt_logprobs_start` they begin at that token of the prompt, and what comes
    before it may be taken from the cache, and with `prompt_logprobs_temperature` they are at another temperature than
    vLLM's, which are at 1.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    prompt_logprobs_temperature: float = 1.0
    skip_special_tokens: bool = True

    @property
    def truncates(self) -> bool:
        """Whether the distribution that is sampled from differs from softmax(logits / temperature)."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @classmethod
    def parse(cls, raw: Mapping[str, Any], max_tokens: int, defaults: Mapping[str, Any]) -> "SamplingParams":
        """Read a caller's dictionary.

        Args:
            raw: Parameters of the request; unknown names are refused.
            max_tokens: Limit that has already been worked out from the request and the context window.
            defaults: Values for names that are missing in `raw`.

        Raises:
            ValueError: For an unknown name or a value out of range.
        """
        given = {k: v for k, v in {**defaults, **raw}.items() if k not in ("max_tokens", "max_new_tokens")}
        known = {k: given.pop(k) for k in list(given) if k in cls.__dataclass_fields__}
        unknown = sorted(k for k, v in given.items() if k not in _IGNORED and v is not None)
        if unknown:
            supported = ", ".join(sorted(cls.__dataclass_fields__))
            raise ValueError(
                f"The rollout server 'transformers' does not know the sampling parameter(s) {', '.join(unknown)}; "
                f"it supports {supported}."
            )
        if given.get("n", 1) not in (None, 1):
            raise ValueError("The rollout server 'transformers' answers with one sample a request; send n requests.")
        known = {k: v for k, v in known.items() if v is not None}
        if "stop" in known:
            stop = known["stop"]
            known["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        known["stop_token_ids"] = frozenset(int(t) for t in known.get("stop_token_ids", ()))
        known["logprobs"] = _parse_logprobs(raw.get("logprobs", defaults.get("logprobs")))
        params = cls(max_tokens=max_tokens, **known)
        params._check()
        return params

    def _check(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}.")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty must be positive, got {self.repetition_penalty}.")
        if self.prompt_logprobs_start < 0:
            raise ValueError(f"prompt_logprobs_start must not be negative, got {self.prompt_logprobs_start}.")
        if not self.prompt_logprobs_temperature > 0:
            raise ValueError(f"prompt_logprobs_temperature must be positive, got {self.prompt_logprobs_temperature}.")


def _parse_logprobs(value: Any) -> int | None:
    """verl sends a bool, vLLM's callers a number: True means the chosen tokens only, K the K best as well."""
    if value is None or value is False:
        return None
    return 0 if value is True else int(value)


def draws(seed: int) -> Iterator[float]:
    """Uniform numbers in [0, 1) of one request, one for each token: a function of the seed alone."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**64))
    return itertools.chain.from_iterable(iter(lambda: generator.random(_DRAW_BLOCK).tolist(), None))


def derive_seed(base_seed: int, weights_version: int | None, prompt_ids: Sequence[int], occurrence: int) -> int:
    """Seed of a request that brings none, in deterministic mode.

    It is made of the rollout's seed, the version of the weights, the prompt, and how often this server was asked the
    same prompt with these weights. The request id (a random UUID) must not take part, nor a count of all requests. So
    the answers to a group's equal prompts are the same in every run, as a set; which member gets which depends on who
    asks first, and with several replicas on who is asked. A caller who needs more passes `seed`.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{base_seed}/{weights_version}/{occurrence}/".encode())
    digest.update(np.asarray(prompt_ids, dtype=np.int64).tobytes())
    return int.from_bytes(digest.digest(), "little")


@dataclass(eq=False)
class Request:
    """One request from admission to its last token, answered with an adapter of the model or with none.

    `tokens` is prompt plus output; the first `computed` of them have their keys and values in the request's slot.
    """

    request_id: str
    prompt_length: int
    tokens: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    draws: Iterator[float]
    adapter: str | None = None
    computed: int = 0
    cached_tokens: int | None = None
    preempted: int = 0
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    log_probs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: tuple[list[list[int]], list[list[float]]] | None = None
    prompt_token_logprobs: list[float] = field(default_factory=list)

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether the log-probabilities of its prompt are wanted and not there yet."""
        return self.params.prompt_logprobs is not None and self.prompt_logprobs is None

    @property
    def reusable(self) -> int:
        """How many of its first tokens need no logits of their own, so that a cache may stand in for them."""
        if self.needs_prompt_logits:
            return max(min(self.params.prompt_logprobs_start, self.prompt_length) - 1, 0)
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def final_length(self) -> int:
        """Length of prompt and output if nothing stops the request early."""
        return self.prompt_length + self.params.max_tokens

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values still have to be computed."""
        return len(self.tokens) - self.computed
