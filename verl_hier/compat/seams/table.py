"""Every symbol and behaviour of verl that verl-hier leans on, as data; `verl-hier doctor` verifies them one by one.

A new version of verl breaks here first, and each line says why it is needed and when it can go. A seam is checked by
reading signatures and source, without a GPU, Ray or a model.
"""

from __future__ import annotations

from verl_hier.compat.seams.engine_table import CPU, VLLM
from verl_hier.compat.seams.inspection import exists, fields, reads, takes
from verl_hier.compat.seams.seam import FILES, TRAINER, Seam, override, seam, verify

_WORKER = "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ"

PACKAGE = (
    seam(
        "plugin_loader",
        "verl:__version__",
        "verl.plugins entry points are imported by `import verl`, and what they raise is swallowed",
        reads("verl", '_entry_points(group="verl.plugins")', "except Exception as _e", "_ep.load()"),
        link=f"{FILES}__init__.py",
        removal="the swallowing: when verl reports plugins that fail, `compat.entry.FAILURE` can go",
    ),
    seam(
        "main_ppo",
        "verl.trainer.main_ppo:main",
        "`verl-hier train` runs verl's own entry point with a recipe as its primary config",
        reads("verl.trainer.main_ppo", '@hydra.main(config_path="config", config_name="ppo_trainer"'),
    ),
    seam(
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
    seam(
        "validate_config",
        "verl.utils.config:validate_config",
        "the recipe check runs verl's own validation offline",
        takes("verl.utils.config:validate_config", "config", "use_reference_policy", "use_critic"),
    ),
    seam(
        "omega_conf_to_dataclass",
        "verl.utils.config:omega_conf_to_dataclass",
        "the recipe check builds the dataclasses that verl's workers would build",
        takes("verl.utils.config:omega_conf_to_dataclass", "config", "dataclass_type"),
    ),
    seam(
        "need_critic",
        "verl.trainer.ppo.utils:need_critic",
        "the recipe check repeats this rule before verl is imported",
        reads("verl.trainer.ppo.utils:need_critic", "config.critic.enable is not None", "AdvantageEstimator.GAE"),
    ),
    seam(
        "need_reference_policy",
        "verl.trainer.ppo.utils:need_reference_policy",
        "the memory estimate counts the reference policy as verl does",
        reads("verl.trainer.ppo.utils:need_reference_policy", "use_kl_in_reward", "use_kl_loss"),
    ),
    seam(
        "reference_config",
        "verl.workers.engine_workers:ActorRolloutRefWorker",
        "the reference policy's block is renamed to an actor's before it is read; the check does the same",
        reads(
            "verl.workers.engine_workers:ActorRolloutRefWorker",
            'self.config.ref.pop("log_prob_micro_batch_size", None)',
            'self.config.ref.pop("log_prob_max_token_len_per_gpu", None)',
        ),
    ),
    seam(
        "custom_dataset",
        "verl.trainer.ppo.utils:create_rl_dataset",
        "tasks of an environment are a data set that `data.custom_cls` names, built from the data block alone",
        reads("verl.trainer.ppo.utils:create_rl_dataset", "get_dataset_class(data_config)", "config=data_config"),
    ),
    seam(
        "policy_loss_registry",
        "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY",
        "policy losses of plugins join verl's registry without overwriting one of its own",
        takes("verl.trainer.ppo.core_algos:register_policy_loss", "name"),
    ),
    seam(
        "loss_aggregation",
        "verl.trainer.ppo.core_algos:agg_loss",
        "policy losses of plugins are summed up as verl's own are",
        takes("verl.trainer.ppo.core_algos:agg_loss", "loss_mat", "loss_mask", "loss_agg_mode", "global_batch_size"),
    ),
)

TRAINER_SEAMS = (
    seam(
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
    seam(
        "trainer_mode_names",
        TRAINER,
        "verl compares the mode with its own three names, so ours is set back to the one it extends",
        reads(TRAINER, 'self.trainer_mode == "sync"', "self.config.trainer.v1.get(self.trainer_mode, {})"),
        removal="when verl asks the class and not the name (hasattr or a class attribute)",
    ),
    override("_build_replay_buffer", "the poll interval is a setting of ours; verl's 2 s dominate small steps"),
    seam(
        "replay_buffer_poll",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer",
        "the poll interval is an attribute that is read at every wait",
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer", "time.sleep(self.poll_interval)"),
        removal="when verl has a config key for the poll interval",
    ),
    override(
        "_next_train_batch", "the schedule's phase travels to the rollout workers with the prompts", "num_prompts"
    ),
    override(
        "_get_required_batch_multiple",
        "padding is bounded by ranks x optimiser steps, not by the batch size",
        "dp_size",
    ),
    override(
        "_balance_batch", "rows are identified and put into a fixed order before they are balanced", "batch", "metrics"
    ),
    override("_compute_advantage", "credit comes from the turn table", "batch", "metrics", says=("tq.kv_batch_put(",)),
    override(
        "_update_actor",
        "mini-batches are a fixed number, however many rows there are",
        "batch",
        "metrics",
        says=('"mini_batch_size": ppo_mini_batch_size', "self.actor_rollout_wg.update_actor(batch)"),
    ),
    override(
        "_update_critic", "as for the actor", "batch", "metrics", says=("self.critic_wg.train_mini_batch(batch)",)
    ),
    override("_save_checkpoint", "the schedule's state is part of a checkpoint", says=("default_local_dir",)),
    override("_load_checkpoint", "the schedule's state is read back", says=("resume_from_path",)),
    override("_compute_metrics", "our metrics and the end-of-step hook", "batch", "metrics"),
    override("on_validate_begin", "what validation asks the servers is not counted as the step's"),
    override("on_validate_end", "as above"),
    seam(
        "rollout_servers",
        f"{TRAINER}._rollout_server_managers",
        "the servers' own counters become metrics of the step",
        reads("verl.workers.rollout.llm_server:LLMServerManager", "self.server_handles = [server._server_handle"),
    ),
    seam(
        "sole_server_client",
        "verl.workers.rollout.llm_server:LLMServerClient",
        "where there is one server, the synchronous trainer's client does not ask the load balancer before each turn",
        reads(
            "verl.workers.rollout.llm_server:LLMServerClient", "await self._acquire_server(", "self._release_server("
        ),
        removal="when verl's client asks once a conversation",
    ),
    seam(
        "resuming_client",
        "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient",
        "the asynchronous trainers get a client that keeps every field of an answer",
        exists(f"{TRAINER}.get_llm_client"),
        takes("verl.workers.rollout.llm_server:LLMServerManager.get_client", "client_cls"),
        reads(
            "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient",
            "output = await super().generate(",
            "final_output = TokenOutput(",
        ),
        removal="when verl's resuming client keeps extra_fields",
    ),
    seam(
        "mini_batch_request",
        "verl.workers.engine_workers:TrainingWorker.train_mini_batch",
        "a request carries the size of its mini-batches",
        reads("verl.workers.engine_workers:TrainingWorker.train_mini_batch", 'key="mini_batch_size"', 'key="epochs"'),
    ),
    seam(
        "loss_weights",
        "verl.workers.utils.losses:ppo_loss",
        "row weights ride on the importance weights that the policy loss multiplies by",
        reads("verl.workers.utils.losses:ppo_loss", '"rollout_is_weights" in data'),
        removal="when verl's policy losses take a weight a row",
    ),
    seam(
        "rollout_correction",
        "verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_and_add_to_batch",
        "verl's correction of rollout and training mismatch is applied as verl applies it",
    ),
    seam(
        "response_to_nested",
        "verl.workers.utils.padding:response_to_nested",
        "corrected masks go back to the queue's layout",
    ),
    seam(
        "non_tensor_data",
        "verl.utils.tensordict_utils:assign_non_tensor_data",
        "the phase is attached to the prompts of a step",
    ),
    seam(
        "transfer_queue",
        "transfer_queue:kv_batch_put",
        "rows, credit and faults travel through TransferQueue",
        exists("transfer_queue:kv_list", "transfer_queue:kv_clear", "transfer_queue:async_kv_put"),
        takes("transfer_queue:kv_batch_get", "keys", "partition_id", "select_fields"),
        takes("transfer_queue:kv_batch_put", "keys", "partition_id", "fields"),
    ),
)

ROLLOUT = (
    seam(
        "agent_loop_worker",
        _WORKER,
        "our rollout runs inside verl's worker; it is a Ray actor class that has to be unwrapped to be extended",
        reads("verl.trainer.ppo.v1.agent_loop_tq", "@ray.remote\nclass AgentLoopWorkerTQ(AgentLoopWorker)"),
        removal="when the worker class is a setting, or a plain class wrapped by its manager",
    ),
    seam(
        "run_prompt",
        f"{_WORKER}._run_prompt",
        "one task is one rollout graph",
        takes(f"{_WORKER}._run_prompt", "prompt", "sampling_params", "trajectory", "trace"),
    ),
    seam(
        "agent_loop_postprocess",
        f"{_WORKER}._agent_loop_postprocess",
        "one put a session, in verl's own row format",
        takes(f"{_WORKER}._agent_loop_postprocess", "outputs", "validate", "session_id"),
    ),
    seam(
        "compute_score",
        f"{_WORKER}._compute_score",
        "verl's reward functions score episodes of environments without tasks of their own",
        takes(f"{_WORKER}._compute_score", "outputs", "kwargs"),
    ),
    seam(
        "agent_loop_manager",
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ",
        "the manager starts the worker class that its attribute names",
        reads("verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.__init__", "self.agent_loop_workers_class"),
    ),
    seam(
        "agent_loop_output",
        "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
        "a row of ours is one of these; the identity of its turns travels in extra_fields",
        fields(
            "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
            *("prompt_ids", "response_ids", "response_mask", "response_logprobs"),
            *("reward_score", "num_turns", "metrics", "extra_fields"),
        ),
    ),
    seam(
        "chat_tokens",
        "verl.utils.tokenizer.continuous_token_wiring:create_continuous_token_builder",
        "chats are tokenised exactly as verl's own agent loops do",
    ),
    seam(
        "token_output",
        "verl.workers.rollout.replica:TokenOutput",
        "what every rollout server answers",
        fields("verl.workers.rollout.replica:TokenOutput", "token_ids", "log_probs", "stop_reason", "extra_fields"),
    ),
)

SEAMS: tuple[Seam, ...] = (*PACKAGE, *TRAINER_SEAMS, *ROLLOUT, *CPU, *VLLM)

__all__ = ["SEAMS", "Seam", "verify"]
