"""Every symbol and behaviour of verl that verl-hier leans on, as data; `verl-hier doctor` verifies them one by one.

A new version of verl breaks here first, and each line says why it is needed and when it can go. A seam is checked by
reading signatures and source, without a GPU, Ray or a model.
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.compat.inspection import Check, SeamBroken, abstract, exists, fields, reads, takes, together

_FILES = "https://github.com/volcengine/verl/blob/v0.9.1/verl/"
_TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_WORKER = "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ"
_NEVER = "stays: this is the interface that we build on"


@dataclass(frozen=True)
class Seam:
    """One thing of verl that we depend on.

    Attributes:
        name: short and unique.
        target: `module:attribute` in verl (or a package that verl brings).
        why: what of ours needs it.
        link: where it is defined, or the issue about it.
        removal: when the seam can go.
        check: raises `SeamBroken` when the installed verl differs.
        since: first version of verl it was verified on.
        until: first version that is known to differ; empty when none is.
    """

    name: str
    target: str
    why: str
    link: str
    removal: str
    check: Check
    since: str = "0.9.1"
    until: str = ""


def verify(seam: Seam) -> str:
    """What is broken, as a phrase; empty when the seam holds."""
    try:
        seam.check()
    except SeamBroken as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _file(target: str) -> str:
    module = target.partition(":")[0].split(".")
    return f"{_FILES}{'/'.join(module[1:])}.py" if module[0] == "verl" else module[0]


def _seam(name: str, target: str, why: str, *checks: Check, removal: str = _NEVER, link: str = "") -> Seam:
    return Seam(name, target, why, link or _file(target), removal, together(exists(target), *checks))


def _override(method: str, why: str, *parameters: str, says: tuple[str, ...] = ()) -> Seam:
    target = f"{_TRAINER}.{method}"
    return _seam(f"trainer.{method}", target, why, takes(target, *parameters), reads(target, *says))


PACKAGE = (
    _seam(
        "plugin_loader",
        "verl:__version__",
        "verl.plugins entry points are imported by `import verl`, and what they raise is swallowed",
        reads("verl", '_entry_points(group="verl.plugins")', "except Exception as _e", "_ep.load()"),
        link=f"{_FILES}__init__.py",
        removal="the swallowing: when verl reports plugins that fail, `compat.entry.FAILURE` can go",
    ),
    _seam(
        "main_ppo",
        "verl.trainer.main_ppo:main",
        "`verl-hier train` runs verl's own entry point with a recipe as its primary config",
        reads("verl.trainer.main_ppo", '@hydra.main(config_path="config", config_name="ppo_trainer"'),
    ),
    _seam(
        "task_runner",
        "verl.trainer.main_ppo:TaskRunnerV1",
        "builds the trainer from the registry and the manager from `agent_loop_manager_class`",
        reads(
            "verl.trainer.main_ppo",
            "get_trainer_cls(config.trainer.v1.trainer_mode)",
            'get("agent_loop_manager_class")',
            "agent_loop_manager_cls.create(",
        ),
    ),
    _seam(
        "validate_config",
        "verl.utils.config:validate_config",
        "the recipe check runs verl's own validation offline",
        takes("verl.utils.config:validate_config", "config", "use_reference_policy", "use_critic"),
    ),
    _seam(
        "omega_conf_to_dataclass",
        "verl.utils.config:omega_conf_to_dataclass",
        "the recipe check builds the dataclasses that verl's workers would build",
        takes("verl.utils.config:omega_conf_to_dataclass", "config", "dataclass_type"),
    ),
    _seam(
        "need_critic",
        "verl.trainer.ppo.utils:need_critic",
        "the recipe check repeats this rule before verl is imported",
        reads("verl.trainer.ppo.utils:need_critic", "config.critic.enable is not None", "AdvantageEstimator.GAE"),
    ),
    _seam(
        "need_reference_policy",
        "verl.trainer.ppo.utils:need_reference_policy",
        "the memory estimate counts the reference policy as verl does",
        reads("verl.trainer.ppo.utils:need_reference_policy", "use_kl_in_reward", "use_kl_loss"),
    ),
    _seam(
        "reference_config",
        "verl.workers.engine_workers:ActorRolloutRefWorker",
        "the reference policy's block is renamed to an actor's before it is read; the check does the same",
        reads(
            "verl.workers.engine_workers:ActorRolloutRefWorker",
            'self.config.ref.pop("log_prob_micro_batch_size", None)',
            'self.config.ref.pop("log_prob_max_token_len_per_gpu", None)',
        ),
    ),
    _seam(
        "custom_dataset",
        "verl.trainer.ppo.utils:create_rl_dataset",
        "tasks of an environment are a data set that `data.custom_cls` names, built from the data block alone",
        reads("verl.trainer.ppo.utils:create_rl_dataset", "get_dataset_class(data_config)", "config=data_config"),
    ),
    _seam(
        "policy_loss_registry",
        "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY",
        "policy losses of plugins join verl's registry without overwriting one of its own",
        takes("verl.trainer.ppo.core_algos:register_policy_loss", "name"),
    ),
    _seam(
        "loss_aggregation",
        "verl.trainer.ppo.core_algos:agg_loss",
        "policy losses of plugins are summed up as verl's own are",
        takes("verl.trainer.ppo.core_algos:agg_loss", "loss_mat", "loss_mask", "loss_agg_mode", "global_batch_size"),
    ),
)

TRAINER = (
    _seam(
        "trainer_registry",
        "verl.trainer.ppo.v1:register_trainer",
        "hier_sync, hier_colocate_async and hier_separate_async are registered trainers",
        exists(
            "verl.trainer.ppo.v1:PPOTrainerSync",
            "verl.trainer.ppo.v1:PPOTrainerColocateAsync",
            "verl.trainer.ppo.v1:PPOTrainerSeparateAsync",
            "verl.trainer.ppo.v1:get_trainer_cls",
        ),
    ),
    _seam(
        "trainer_mode_names",
        _TRAINER,
        "verl compares the mode with its own three names, so ours is set back to the one it extends",
        reads(_TRAINER, 'self.trainer_mode == "sync"', "self.config.trainer.v1.get(self.trainer_mode, {})"),
        removal="when verl asks the class and not the name (hasattr or a class attribute)",
    ),
    _override("_build_replay_buffer", "the poll interval is a setting of ours; verl's 2 s dominate small steps"),
    _seam(
        "replay_buffer_poll",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer",
        "the poll interval is an attribute that is read at every wait",
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer", "time.sleep(self.poll_interval)"),
        removal="when verl has a config key for the poll interval",
    ),
    _override(
        "_next_train_batch", "the schedule's phase travels to the rollout workers with the prompts", "num_prompts"
    ),
    _override(
        "_get_required_batch_multiple",
        "padding is bounded by ranks x optimiser steps, not by the batch size",
        "dp_size",
    ),
    _override(
        "_balance_batch", "rows are identified and put into a fixed order before they are balanced", "batch", "metrics"
    ),
    _override("_compute_advantage", "credit comes from the turn table", "batch", "metrics", says=("tq.kv_batch_put(",)),
    _override(
        "_update_actor",
        "mini-batches are a fixed number, however many rows there are",
        "batch",
        "metrics",
        says=('"mini_batch_size": ppo_mini_batch_size', "self.actor_rollout_wg.update_actor(batch)"),
    ),
    _override(
        "_update_critic", "as for the actor", "batch", "metrics", says=("self.critic_wg.train_mini_batch(batch)",)
    ),
    _override("_save_checkpoint", "the schedule's state is part of a checkpoint", says=("default_local_dir",)),
    _override("_load_checkpoint", "the schedule's state is read back", says=("resume_from_path",)),
    _override("_compute_metrics", "our metrics and the end-of-step hook", "batch", "metrics"),
    _override("on_validate_begin", "what validation asks the servers is not counted as the step's"),
    _override("on_validate_end", "as above"),
    _seam(
        "rollout_servers",
        f"{_TRAINER}._rollout_server_managers",
        "the servers' own counters become metrics of the step",
        reads("verl.workers.rollout.llm_server:LLMServerManager", "self.server_handles = [server._server_handle"),
    ),
    _seam(
        "resuming_client",
        "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient",
        "the asynchronous trainers get a client that keeps every field of an answer",
        exists(f"{_TRAINER}.get_llm_client"),
        takes("verl.workers.rollout.llm_server:LLMServerManager.get_client", "client_cls"),
        reads(
            "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient",
            "output = await super().generate(",
            "final_output = TokenOutput(",
        ),
        removal="when verl's resuming client keeps extra_fields",
    ),
    _seam(
        "mini_batch_request",
        "verl.workers.engine_workers:TrainingWorker.train_mini_batch",
        "a request carries the size of its mini-batches",
        reads("verl.workers.engine_workers:TrainingWorker.train_mini_batch", 'key="mini_batch_size"', 'key="epochs"'),
    ),
    _seam(
        "loss_weights",
        "verl.workers.utils.losses:ppo_loss",
        "row weights ride on the importance weights that the policy loss multiplies by",
        reads("verl.workers.utils.losses:ppo_loss", '"rollout_is_weights" in data'),
        removal="when verl's policy losses take a weight a row",
    ),
    _seam(
        "rollout_correction",
        "verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_and_add_to_batch",
        "verl's correction of rollout and training mismatch is applied as verl applies it",
    ),
    _seam(
        "response_to_nested",
        "verl.workers.utils.padding:response_to_nested",
        "corrected masks go back to the queue's layout",
    ),
    _seam(
        "non_tensor_data",
        "verl.utils.tensordict_utils:assign_non_tensor_data",
        "the phase is attached to the prompts of a step",
    ),
    _seam(
        "transfer_queue",
        "transfer_queue:kv_batch_put",
        "rows, credit and faults travel through TransferQueue",
        exists("transfer_queue:kv_list", "transfer_queue:kv_clear", "transfer_queue:async_kv_put"),
        takes("transfer_queue:kv_batch_get", "keys", "partition_id", "select_fields"),
        takes("transfer_queue:kv_batch_put", "keys", "partition_id", "fields"),
    ),
)

ROLLOUT = (
    _seam(
        "agent_loop_worker",
        _WORKER,
        "our rollout runs inside verl's worker; it is a Ray actor class that has to be unwrapped to be extended",
        reads("verl.trainer.ppo.v1.agent_loop_tq", "@ray.remote\nclass AgentLoopWorkerTQ(AgentLoopWorker)"),
        removal="when the worker class is a setting, or a plain class wrapped by its manager",
    ),
    _seam(
        "run_prompt",
        f"{_WORKER}._run_prompt",
        "one task is one rollout graph",
        takes(f"{_WORKER}._run_prompt", "prompt", "sampling_params", "trajectory", "trace"),
    ),
    _seam(
        "agent_loop_postprocess",
        f"{_WORKER}._agent_loop_postprocess",
        "one put a session, in verl's own row format",
        takes(f"{_WORKER}._agent_loop_postprocess", "outputs", "validate", "session_id"),
    ),
    _seam(
        "compute_score",
        f"{_WORKER}._compute_score",
        "verl's reward functions score episodes of environments without tasks of their own",
        takes(f"{_WORKER}._compute_score", "outputs", "kwargs"),
    ),
    _seam(
        "agent_loop_manager",
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ",
        "the manager starts the worker class that its attribute names",
        reads("verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.__init__", "self.agent_loop_workers_class"),
    ),
    _seam(
        "agent_loop_output",
        "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
        "a row of ours is one of these; the identity of its turns travels in extra_fields",
        fields(
            "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
            *("prompt_ids", "response_ids", "response_mask", "response_logprobs"),
            *("reward_score", "num_turns", "metrics", "extra_fields"),
        ),
    ),
    _seam(
        "chat_tokens",
        "verl.utils.tokenizer.continuous_token_wiring:create_continuous_token_builder",
        "chats are tokenised exactly as verl's own agent loops do",
    ),
    _seam(
        "token_output",
        "verl.workers.rollout.replica:TokenOutput",
        "what every rollout server answers",
        fields("verl.workers.rollout.replica:TokenOutput", "token_ids", "log_probs", "stop_reason", "extra_fields"),
    ),
)

_DISTRIBUTED = "verl.utils.distributed"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"

CPU = (
    _seam(
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
    _seam(
        "process_group_ray",
        f"{_DISTRIBUTED}:initialize_global_process_group_ray",
        "on a CPU it asks torch for the device cpu twice, so the backend is given",
        takes(f"{_DISTRIBUTED}:initialize_global_process_group_ray", "timeout_second", "backend"),
        reads(_DISTRIBUTED, 'backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'),
        removal="when verl leaves out the second entry for the device cpu",
    ),
    _seam(
        "process_group_torchrun",
        f"{_DISTRIBUTED}:initialize_global_process_group",
        "as above, for supervised training",
        reads(_DISTRIBUTED, 'backend = f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"\n    torch.distributed'),
        removal="when verl leaves out the second entry for the device cpu",
    ),
    _seam(
        "engine_registry",
        "verl.workers.engine.base:EngineRegistry.register",
        "FSDP2 engines are registered for the device cpu",
        takes("verl.workers.engine.base:EngineRegistry.register", "model_type", "backend", "device"),
        removal="when verl registers its FSDP engines for the CPU",
    ),
    _seam(
        "fsdp_offload",
        f"{_FSDP}:FSDPEngine._build_fsdp_module",
        "a reference policy is offloaded through pinned memory, which a CPU does not have",
        reads(_FSDP, "self.engine_config.offload_policy or self.engine_config.forward_only"),
        exists(f"{_FSDP}:FSDPEngineWithLMHead", f"{_FSDP}:FSDPEngineWithValueHead._build_module"),
        removal="when offloading asks the platform",
    ),
    _seam(
        "value_head_attention",
        "verl.utils.model:load_valuehead_model",
        "a critic is loaded with flash attention whatever the recipe says",
        reads("verl.utils.model", 'attn_implementation="flash_attention_2"'),
        takes(
            "verl.utils.model:load_valuehead_model", "local_path", "torch_dtype", "model_config", "trust_remote_code"
        ),
        removal="when load_valuehead_model leaves the attention to model_config",
    ),
    _seam(
        "replica_registry",
        "verl.workers.rollout.replica:RolloutReplicaRegistry.register",
        "`actor_rollout_ref.rollout.name: transformers` is a replica of ours",
        takes("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "name", "loader"),
        exists("verl.workers.rollout.replica:RolloutReplica.launch_servers"),
    ),
    _seam(
        "adapter_registry",
        "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
        "the trainer's side of our server is found in this private dictionary",
        reads("verl.workers.rollout.base", "fqdn = _ROLLOUT_REGISTRY[(rollout_name, mode)]"),
        abstract("verl.workers.rollout.base:BaseRollout", "resume", "release", "update_weights"),
        removal="when rollout adapters have a public registry",
    ),
    _seam(
        "checkpoint_engine",
        "verl.checkpoint_engine.base:CheckpointEngineRegistry.register",
        "weights reach separate rollout nodes over gloo",
        abstract(
            "verl.checkpoint_engine.base:CheckpointEngine",
            *("prepare", "build_topology", "init_process_group", "finalize", "send_weights", "receive_weights"),
        ),
        removal="when verl brings a checkpoint engine that needs neither NCCL nor RDMA",
    ),
    _seam(
        "weight_iterator",
        "verl.workers.rollout.utils:ensure_async_iterator",
        "weights arrive as an iterator or an asynchronous one",
        exists("verl.workers.rollout.utils:get_max_position_embeddings", "verl.utils.net_utils:get_free_port"),
    ),
    _seam(
        "model_config",
        "verl.workers.config:HFModelConfig",
        "the server and the recipe check read the model's block",
        fields(
            "verl.workers.config:HFModelConfig", "path", "local_path", "hf_config", "tokenizer", "trust_remote_code"
        ),
    ),
)

SEAMS: tuple[Seam, ...] = (*PACKAGE, *TRAINER, *ROLLOUT, *CPU)
