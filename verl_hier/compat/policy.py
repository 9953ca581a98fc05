"""verl's rollout servers as a `rollout.Policy`: one call a turn, in the words that each engine understands."""

from __future__ import annotations

from typing import Any

from ray.exceptions import RayError

from verl_hier.errors import RolloutError
from verl_hier.rollout.interfaces import Generation, Sampling

CURE = "start the same command again: with `trainer.resume_mode: auto` it goes on from the last checkpoint"


def sampling_params(engine: str, sampling: Sampling) -> dict[str, Any]:
    """verl's `sampling_params` for an engine (`actor_rollout_ref.rollout.name`)."""
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
    if sampling.seed is not None:
        # SGLang's request field for it is `sampling_seed`, see sglang's SamplingParams.
        params["sampling_seed" if engine == "sglang" else "seed"] = sampling.seed
    if sampling.top_logprobs and (engine == "transformers" or engine.endswith("_topk")):
        params["logprobs"] = sampling.top_logprobs
    return params


class ServerPolicy:
    """See `rollout.Policy`. Wraps verl's LLM server client (verl/workers/rollout/llm_server.py)."""

    def __init__(self, client: Any, engine: str) -> None:
        self._client = client
        self._engine = engine

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`."""
        try:
            output = await self._client.generate(
                conversation, prompt_ids=prompt, sampling_params=sampling_params(self._engine, sampling)
            )
        except RayError as error:
            raise RolloutError(f"the rollout server is gone ({type(error).__name__}); {CURE}.") from error
        extra = output.extra_fields
        return Generation(
            token_ids=list(output.token_ids),
            logprobs=list(output.log_probs or []),
            stop_reason=output.stop_reason,
            version=(int(extra.get("min_global_steps") or 0), int(extra.get("max_global_steps") or 0)),
            cached_tokens=int(extra.get("num_cached_tokens") or 0),
            top_logprobs=extra.get("top_logprobs") or [],
        )
