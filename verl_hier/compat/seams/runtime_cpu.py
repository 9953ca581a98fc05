"""What the CPU runtime uses of verl's platforms, engines, rollout servers and checkpoint engines."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import abstract, exists, fields, reads, takes
from verl_hier.compat.seams.seam import seam

_DISTRIBUTED = "verl.utils.distributed"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"

CPU = (
    seam(
        "platform",
        "verl.plugin.platform.platform_base:PlatformBase",
        "the CPU is a platform of verl",
        abstract(
            "verl.plugin.platform.platform_base:PlatformBase",
            *("device_name", "vendor_name", "device_module", "is_available", "is_platform_available"),
            *("current_device", "device_count", "set_device", "synchronize", "manual_seed", "manual_seed_all"),
            *("set_allocator_settings", "empty_cache", "get_device_capability", "communication_backend_name"),
            *("visible_devices_envvar", "nvtx_range", "profiler_start", "profiler_stop"),
            *("ray_resource_name", "ray_noset_envvars", "is_ipc_supported", "cudart", "rollout_env_vars"),
        ),
        exists(
            "verl.plugin.platform.platform_manager:PlatformRegistry.register",
            "verl.plugin.platform.platform_manager:set_platform",
            "verl.plugin.platform.platform_manager:_current_platform",
        ),
        removal="when verl brings a CPU platform",
    ),
    seam(
        "process_group_ray",
        f"{_DISTRIBUTED}:initialize_global_process_group_ray",
        "on a CPU it asks torch for the device cpu twice, so the backend is given",
        takes(f"{_DISTRIBUTED}:initialize_global_process_group_ray", "timeout_second", "backend"),
        reads(_DISTRIBUTED, 'backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'),
        removal="when verl leaves out the second entry for the device cpu",
    ),
    seam(
        "process_group_torchrun",
        f"{_DISTRIBUTED}:initialize_global_process_group",
        "as above, for supervised training",
        reads(_DISTRIBUTED, 'backend = f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"\n    torch.distributed'),
        removal="when verl leaves out the second entry for the device cpu",
    ),
    seam(
        "log_probs",
        "verl.utils.torch_functional:logprobs_from_logits_v2",
        "it takes the log-sum-exp of each token by itself, which costs a CPU a third of a small update",
        takes("verl.utils.torch_functional:logprobs_from_logits_v2", "logits", "labels"),
        reads("verl.utils.torch_functional", "torch.stack([torch.logsumexp(logit, dim=-1) for logit in logits])"),
        removal="when it takes several rows at a time",
    ),
    seam(
        "engine_registry",
        "verl.workers.engine.base:EngineRegistry.register",
        "FSDP2 engines are registered for the device cpu",
        takes("verl.workers.engine.base:EngineRegistry.register", "model_type", "backend", "device"),
        removal="when verl registers its FSDP engines for the CPU",
    ),
    seam(
        "fsdp_offload",
        f"{_FSDP}:FSDPEngine._build_fsdp_module",
        "a reference policy is offloaded through pinned memory, which a CPU does not have",
        reads(_FSDP, "self.engine_config.offload_policy or self.engine_config.forward_only"),
        exists(f"{_FSDP}:FSDPEngineWithLMHead", f"{_FSDP}:FSDPEngineWithValueHead._build_module"),
        removal="when offloading asks the platform",
    ),
    seam(
        "value_head_attention",
        "verl.utils.model:load_valuehead_model",
        "a critic is loaded with flash attention whatever the recipe says",
        reads("verl.utils.model", 'attn_implementation="flash_attention_2"'),
        takes(
            "verl.utils.model:load_valuehead_model", "local_path", "torch_dtype", "model_config", "trust_remote_code"
        ),
        removal="when load_valuehead_model leaves the attention to model_config",
    ),
    seam(
        "replica_registry",
        "verl.workers.rollout.replica:RolloutReplicaRegistry.register",
        "`actor_rollout_ref.rollout.name: transformers` is a replica of ours",
        takes("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "name", "loader"),
        exists("verl.workers.rollout.replica:RolloutReplica.launch_servers"),
    ),
    seam(
        "adapter_registry",
        "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
        "the trainer's side of our server is found in this private dictionary",
        reads("verl.workers.rollout.base", "fqdn = _ROLLOUT_REGISTRY[(rollout_name, mode)]"),
        abstract("verl.workers.rollout.base:BaseRollout", "resume", "release", "update_weights"),
        removal="when rollout adapters have a public registry",
    ),
    seam(
        "checkpoint_engine",
        "verl.checkpoint_engine.base:CheckpointEngineRegistry.register",
        "weights reach separate rollout nodes over gloo",
        abstract(
            "verl.checkpoint_engine.base:CheckpointEngine",
            *("prepare", "build_topology", "init_process_group", "finalize", "send_weights", "receive_weights"),
        ),
        removal="when verl brings a checkpoint engine that needs neither NCCL nor RDMA",
    ),
    seam(
        "weight_iterator",
        "verl.workers.rollout.utils:ensure_async_iterator",
        "weights arrive as an iterator or an asynchronous one",
        exists("verl.workers.rollout.utils:get_max_position_embeddings", "verl.utils.net_utils:get_free_port"),
    ),
    seam(
        "model_config",
        "verl.workers.config:HFModelConfig",
        "the server and the recipe check read the model's block",
        fields(
            "verl.workers.config:HFModelConfig", "path", "local_path", "hf_config", "tokenizer", "trust_remote_code"
        ),
    ),
)
