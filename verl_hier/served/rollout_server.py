"""verl's rollout servers as a `rollout.Policy`: one request a turn, with the parameters that each server takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError, RayTaskError

from verl_hier.errors import RolloutError
from verl_hier.host.specs import RolloutServerSpec
from verl_hier.rollout import Generation, Sampling, Scored

RESUME_HINT = "start the same command again: with `trainer.resume_mode: auto` it goes on from the last checkpoint"


def sampling_params(server: RolloutServerSpec, sampling: Sampling) -> dict[str, Any]:
    """verl's `sampling_params` for a server."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "repetition_penalty": 1.0,
        "logprobs": True,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.stop_tokens:
        params["stop_token_ids"] = list(sampling.stop_tokens)
    if sampling.seed is not None:
        params[server.seed] = sampling.seed
    if sampling.top_logprobs and server.top_logprobs:
        params["logprobs"] = sampling.top_logprobs
    return params


def scoring_params(server: RolloutServerSpec, start: int, top: int, temperature: float = 1.0) -> dict[str, Any]:
    """verl's `sampling_params` for reading a prompt from token `start` on: a request that generates one token.

    `prompt_logprobs` is what verl's own servers take (`extract_prompt_logprobs` for vLLM, its twin for SGLang).

    Raises:
        RolloutError: when the server reads prompts at temperature 1 alone.
    """
    if temperature != 1 and not server.scores_at_temperature:
        raise RolloutError(
            f"actor_rollout_ref.rollout.temperature: {temperature:g}: the rollout server {server.name!r} returns "
            "log-probs of given tokens at temperature 1 alone; set it to 1."
        )
    params = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "max_tokens": 1,
        "logprobs": False,
        "prompt_logprobs": top,
    }
    if server.scores_from:
        params["prompt_logprobs_start"] = start
    if temperature != 1:
        params["prompt_logprobs_temperature"] = temperature
    return params


class ServerPolicy:
    """See `rollout.Policy`. Wraps verl's LLM server client (verl/workers/rollout/llm_server.py).

    Args:
        client: the trainer's client.
        server: what it can do.
    """

    def __init__(self, client: Any, server: RolloutServerSpec) -> None:
        self._client = client
        self._server = server

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`."""
        output = await self._ask(prompt, sampling_params(self._server, sampling), conversation)
        extra = output.extra_fields
        return Generation(
            token_ids=list(output.token_ids),
            logprobs=list(output.log_probs or []),
            stop_reason=output.stop_reason,
            version=_version(extra),
            cached_tokens=int(extra.get("num_cached_tokens") or 0),
            top_logprobs=[_possible(position) for position in extra.get("top_logprobs") or []],
        )

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`.

        One request that reads `prompt + tokens` and generates a token that is thrown away. vLLM returns with `top` the
        likeliest tokens and nothing else: if one of `tokens` is not among them, a second request reads its log p.

        Raises:
            RolloutError: when the server is gone, refuses the request, or returns no log-probs of prompts.
        """
        if not prompt:
            raise ValueError("the first token of a sequence has no probability: prompt must not be empty")
        if not tokens:
            return Scored([], [])
        ids, values, own, version = await self._read(prompt, tokens, conversation, top, temperature)
        if top == 0:
            return Scored(own or [row[0] for row in values], [[] for _ in tokens], version)
        best = [_possible(zip(i, v, strict=True)) for i, v in zip(ids, values, strict=True)]
        if own is None:
            found = [dict(position).get(token) for position, token in zip(best, tokens, strict=True)]
            if None in found:
                _, values, _, _ = await self._read(prompt, tokens, conversation, 0, temperature)
                found = [row[0] for row in values]
            own = [float(value) for value in found if value is not None]
        return Scored(own, best, version)

    async def _read(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int, temperature: float
    ) -> tuple[list[list[int]], list[list[float]], list[float] | None, tuple[int, int]]:
        """Ids and log-probs at the position of each of `tokens`, the log-probs of `tokens` themselves where the server
        returns them, and the weight versions that took part."""
        params = scoring_params(self._server, len(prompt), top, temperature)
        extra = (await self._ask(prompt + tokens, params, conversation)).extra_fields
        if "prompt_logprobs" not in extra:
            raise RolloutError(
                f"actor_rollout_ref.rollout.name: the rollout server {self._server.name!r} returned no log-probs "
                "of a prompt; use a server that does, or an entropy of sampled tokens, which every server returns."
            )
        # Entry i belongs to token i + 1, the last one is a dummy; the CPU server has left out what was not asked for.
        last = len(extra["prompt_logprobs"]) - 1
        places = slice(last - len(tokens), last)
        own = extra.get("prompt_token_logprobs")
        own = own and own[-len(tokens) :]
        return extra["prompt_ids"][places], extra["prompt_logprobs"][places], own, _version(extra)

    async def _ask(self, prompt: list[int], params: dict[str, Any], conversation: str) -> Any:
        try:
            return await self._client.generate(conversation, prompt_ids=prompt, sampling_params=params)
        except RayTaskError as error:
            raise RolloutError(
                f"the rollout server could not answer a request: {error.cause!r}; {RESUME_HINT}."
            ) from error
        except RayError as error:
            raise RolloutError(f"the rollout server is gone ({type(error).__name__}); {RESUME_HINT}.") from error


def _version(extra: Mapping[str, Any]) -> tuple[int, int]:
    """Lowest and highest weight version that took part in an answer."""
    return int(extra.get("min_global_steps") or 0), int(extra.get("max_global_steps") or 0)


def _possible(position: Any) -> list[tuple[int, float]]:
    """Tokens with a probability: a server that truncates first (vLLM's `processed_logprobs`) lists others with -inf."""
    return [(int(token), float(value)) for token, value in position if value > -math.inf]
