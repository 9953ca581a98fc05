"""How unsure the policy was at each token it sampled: three sources behind one function; docs/entropy.md.

`sampled` takes -log p of the token itself, which every server returns and whose mean is an unbiased estimate of the
entropy at temperature 1. `top_k` sums -p log p over the likeliest tokens that the server returns beside it. `prefill`
asks for the same sum in a second request that only reads the tokens, where servers return log-probs of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.rollout.interfaces import Generation, Policy


@dataclass(frozen=True)
class EntropyOptions:
    """Where a sampler's entropies come from."""

    source: Literal["sampled", "top_k", "prefill"] = "sampled"
    """`sampled`, `top_k` or `prefill`, see the module."""
    k: int = 10
    """How many of the likeliest tokens count, for the last two."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")


def top_entropy(top: Sequence[tuple[int, float]]) -> float:
    """-Σ p log p (nats) over the given (token id, log p), not renormalised: a lower bound of the entropy, as ARPO's."""
    return -sum(math.exp(logprob) * logprob for _, logprob in top)


async def entropies(
    options: EntropyOptions, policy: Policy, prompt: list[int], generation: Generation, conversation: str
) -> list[float]:
    """(L,) entropy estimates (nats) of a generation of L tokens; empty for `sampled`, where the log-probs say it."""
    if options.source == "sampled" or generation.entropy:
        return generation.entropy
    top = generation.top_logprobs
    if options.source == "prefill":
        top = (await policy.score(prompt, generation.token_ids, conversation, options.k)).top
    return [top_entropy(position[: options.k]) for position in top]
