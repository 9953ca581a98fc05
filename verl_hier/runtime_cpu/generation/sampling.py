"""From logits to tokens: temperature, truncation, one uniform draw a token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_hier.runtime_cpu.generation.request import Request


@dataclass(frozen=True)
class Sampled:
    """Result for a batch of B rows.

    `top` holds, for the rows that asked for it, the best tokens with their log-probabilities, best first.
    """

    tokens: list[int]
    log_probs: list[float]
    top: dict[int, list[tuple[int, float]]]


def sample(logits: torch.Tensor, requests: Sequence[Request], vocab_limit: int) -> Sampled:
    """Choose one token for each row.

    The log-probability that is reported is log_softmax(logits / temperature), before truncation and penalties: it is
    what the actor computes, so that the two can be compared. Greedy rows (temperature 0) report it at temperature 1.

    Args:
        logits: [B, vocabulary] of any float dtype; row b belongs to requests[b].
        requests: Of length B; each advances its stream of draws by one.
        vocab_limit: Token ids from here on exist in the model but not in the tokenizer, and are never chosen.
    """
    logits = logits.float()
    temperatures = [r.params.temperature for r in requests]
    scaled = logits
    if any(t not in (0.0, 1.0) for t in temperatures):
        scaled = logits / torch.tensor([t or 1.0 for t in temperatures]).unsqueeze(1)
    log_probs = torch.log_softmax(scaled, dim=-1)
    weights = log_probs.exp()
    for i, request in enumerate(requests):
        if _is_special(request):
            weights[i] = _special_weights(logits[i], request)
    weights = weights[:, :vocab_limit]
    tokens = _draw(weights, [next(r.draws) for r in requests])
    greedy = [i for i, t in enumerate(temperatures) if t == 0.0]
    if greedy:
        tokens[greedy] = weights[greedy].argmax(dim=-1)
    chosen = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
    return Sampled(tokens.tolist(), chosen, _top(log_probs, requests))


def _draw(weights: torch.Tensor, uniform: list[float]) -> torch.Tensor:
    """Inverse of the cumulative distribution, in float64: [B, vocabulary] weights and B draws to B token ids.

    A token of weight zero leaves the cumulative sum unchanged and can therefore not be chosen.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = torch.tensor(uniform, dtype=torch.float64).unsqueeze(1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    # u * total can round up to the total itself; the most likely token is as good an answer as any.
    beyond = tokens >= weights.shape[-1]
    if bool(beyond.any()):
        tokens = torch.where(beyond, weights.argmax(dim=-1), tokens)
    return tokens


def _is_special(request: Request) -> bool:
    params = request.params
    return params.truncates or params.repetition_penalty != 1.0 or request.output_length < params.min_tokens


def _special_weights(logits: torch.Tensor, request: Request) -> torch.Tensor:
    """One row [vocabulary] of logits to weights, in vLLM's order: penalty, temperature, min_p, top_k, top_p."""
    params = request.params
    row = logits.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(request.tokens)))
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if request.output_length < params.min_tokens and request.stop_ids:
        row[sorted(request.stop_ids)] = float("-inf")
    probs = torch.softmax(row / (params.temperature or 1.0), dim=-1)
    if params.min_p > 0.0:
        probs = torch.where(probs < params.min_p * probs.max(), 0.0, probs)
    if params.top_k > 0 or params.top_p < 1.0:
        probs = _truncate(probs, params.top_k, params.top_p)
    return probs


def _truncate(probs: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Keep the `top_k` best of [vocabulary], then the smallest set whose share of those reaches `top_p`."""
    ordered, index = probs.sort(descending=True)
    if 0 < top_k < len(ordered):
        ordered[top_k:] = 0.0
    if top_p < 1.0:
        share = ordered / ordered.sum()
        before = share.cumsum(dim=-1) - share
        ordered = torch.where(before < top_p, ordered, 0.0)
    return torch.zeros_like(probs).scatter(0, index, ordered)


def _top(log_probs: torch.Tensor, requests: Sequence[Request]) -> dict[int, list[tuple[int, float]]]:
    wanted = {i: r.params.logprobs for i, r in enumerate(requests) if r.params.logprobs}
    if not wanted:
        return {}
    width = min(max(wanted.values()), log_probs.shape[-1])
    best = log_probs[list(wanted)].topk(width, dim=-1)
    rows = zip(wanted.items(), best.indices.tolist(), best.values.tolist(), strict=True)
    return {i: list(zip(ids[:k], values[:k], strict=True)) for (i, k), ids, values in rows}
