"""Entropy of the policy at each sampled token, from one of three sources; docs/entropy.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import Count
from verl_hier.rollout.policy import Generation, Policy


@dataclass(frozen=True)
class EntropyOptions:
    """Where the entropies that samplers use come from."""

    source: Literal["sampled", "top_k", "prefill"] = "sampled"
    """`sampled`: -log p of the sampled token, which every server returns and whose mean is an unbiased estimate of the
    entropy at temperature 1. `top_k`: the sum of -p log p over the likeliest tokens, which the server returns with the
    sampled one. `prefill`: the same sum, from a second request that only reads the tokens; the server has to return
    log-probs of prompts."""
    k: Count = 10
    """Number of likeliest tokens in the sum of `top_k` and `prefill`."""


def top_entropy(top: Sequence[tuple[int, float]]) -> float:
    """-Σ p log p (nats) over the given (token id, log p), not renormalised: a lower bound of the entropy, as ARPO's."""
    return -sum(math.exp(logprob) * logprob for _, logprob in top)


async def entropies(
    options: EntropyOptions, policy: Policy, prompt: list[int], generation: Generation, conversation: str
) -> list[float]:
    """(L,) entropy estimates (nats) of a generation of L tokens; empty for `sampled`, which needs log-probs alone."""
    if options.source == "sampled" or generation.entropy:
        return generation.entropy
    top = generation.top_logprobs
    if options.source == "prefill":
        top = (await policy.score(prompt, generation.token_ids, conversation, options.k)).top
    return [top_entropy(position[: options.k]) for position in top]
