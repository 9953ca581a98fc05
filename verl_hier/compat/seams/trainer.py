"""What we use of verl's v1 trainer and of TransferQueue."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import exists, reads, spells, takes
from verl_hier.compat.seams.seam import TRAINER, override, seam

_SERVED_BY = "verl.workers.rollout"

TRAINERS = (
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
    seam(
        "start_messages",
        TRAINER,
        "`train` tells how far the start has come by what verl logs; without these lines it tells nothing",
        reads(
            TRAINER,
            *("train and validate dataloader initialized", "actor and ref model engine initialized"),
            "all initialize finished, ready to fit",
        ),
        removal="when verl reports the phases of its start",
    ),
    seam(
        "reward_function",
        "verl.trainer.ppo.reward:get_custom_reward_fn",
        "answers to tasks of verl's data sets are scored outside of the trainer too",
        takes("verl.trainer.ppo.reward:get_custom_reward_fn", "config"),
    ),
    seam(
        "default_reward_function",
        "verl.utils.reward_score:default_compute_score",
        "as above, where the recipe names no reward function",
        takes(
            "verl.utils.reward_score:default_compute_score",
            *("data_source", "solution_str", "ground_truth", "extra_info"),
        ),
    ),
    override(
        "_build_replay_buffer",
        "the poll interval is a setting of ours (verl's 2 s dominate small steps); hier.refill and the asynchronous "
        "trainers have buffers of their own",
        says=("load_extern_type(custom_sampler.path, custom_sampler.name)",),
    ),
    seam(
        "replay_buffer_poll",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer",
        "the poll interval is an attribute that is read at every wait",
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer", "time.sleep(self.poll_interval)"),
        removal="when verl has a config key for the poll interval",
    ),
    seam(
        "replay_buffer_sample",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample",
        "hier.refill settles the tasks of a step before verl samples them, and removes those that are not trained",
        takes("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._clear_groups", "partition_id", "uids"),
        takes("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll", "partition_id", "last_debug_time"),
        reads(
            "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sync_metadata_from_transfer_queue",
            "self.finished_keys[partition_id].add(key)",
            "self.failure_keys[partition_id].add(key)",
        ),
        reads(
            "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample",
            "has_enough_samples = len(sampleable_keys) >= batch_size",
        ),
        removal="when verl's filter_groups has a limit and a filter of one's own",
    ),
    override(
        "_submit_batch_to_rollout",
        "the asynchronous trainers number the tasks that they launch, before anybody else writes their tags",
        "batch",
        says=("self.agent_loop_manager.generate_sequences(batch)", '"is_prompt": True'),
    ),
    seam(
        "replay_buffer_order",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync",
        "hier.launch_order takes tasks by their launch, and hier/durations measures what is taken and dropped",
        takes(
            "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._has_enough_samples",
            *("global_steps", "partition_id", "batch_size", "sampleable_keys"),
        ),
        takes(
            "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._select_prompt_uids",
            *("partition_id", "sampleable_keys", "batch_size"),
        ),
        reads(
            "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable",
            *("self._evict_terminal_groups(", "self._has_enough_samples("),
        ),
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.sample", "self._select_prompt_uids("),
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._evict_terminal_groups", "self._clear_groups("),
        reads(TRAINER, "self._resolve_filter_groups_metric()"),
        reads("transfer_queue.metadata:BatchMeta.update_custom_meta", "self.custom_meta[i].update(meta)"),
        removal="when verl has an order of launches and says how long tasks took",
    ),
    seam(
        "replay_buffer_wait",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll",
        "a run ends when a process has died that holds what the trainer waits for",
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample", "self._wait_for_next_poll("),
        reads("verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable", "self._wait_for_next_poll("),
        reads("transfer_queue.interface:_maybe_create_tq_storage", "_TQ_STORAGE[backend_name] = backend_resources"),
        removal="when verl notices it itself",
    ),
    override("prepare_step", "the tasks of a step are counted from here", says=("self._add_batch_to_generate()",)),
    override("_fetch_one_gen_batch", "no task is drawn twice in a step that exchanges tasks"),
    seam(
        "further_prompts",
        f"{TRAINER}._add_prompts_to_generate",
        "hier.refill draws further tasks one by one",
        takes(f"{TRAINER}._add_prompts_to_generate", "num_prompts"),
        reads(f"{TRAINER}._next_train_batch", "self._fetch_one_gen_batch()", "gen_batch_size"),
    ),
    override(
        "_next_train_batch", "the schedule's phase travels to the rollout workers with the prompts", "num_prompts"
    ),
    override(
        "_validate",
        "what the schedule tells the tasks of a validation travels with them",
        says=("for batch_dict in self.val_dataloader:", "tu.get_tensordict(batch_dict)"),
    ),
    override(
        "_get_required_batch_multiple",
        "padding is bounded by ranks x optimiser steps, not by the batch size",
        "dp_size",
    ),
    override(
        "_balance_batch", "rows are identified and put into a fixed order before they are balanced", "batch", "metrics"
    ),
    override("_compute_old_log_prob", "each policy reckons those of its own rows", "batch", "metrics"),
    override("_compute_ref_log_prob", "as above, with a reference of its own", "batch", "metrics"),
    seam(
        "another_policy",
        f"{TRAINER}._setup",
        "workers and servers of a further policy are made as verl makes those of the actor",
        reads(
            f"{TRAINER}._setup",
            *("create_colocated_worker_cls(class_dict=class_dict)", "wg_dict.spawn(prefix_set=class_dict.keys())"),
            *("self.actor_rollout_wg.init_model()", 'checkpoint_engine_config.backend = "naive"'),
            *("self.checkpoint_manager.sleep_replicas()", "self._load_checkpoint()"),
        ),
        takes("verl.workers.rollout.llm_server:LLMServerManager.__init__", "worker_group", "start_rank"),
        takes("verl.checkpoint_engine:CheckpointEngineManager.__init__", "config", "actor_wg", "replicas"),
        takes("verl.single_controller.ray:RayWorkerGroup.__init__", "resource_pool", "ray_cls_with_init"),
        takes("verl.single_controller.ray.base:create_colocated_worker_cls", "class_dict"),
        reads("verl.single_controller.ray.base:ResourcePoolManager", "max_colocate_count: int"),
        removal="when verl has several actors in one run",
    ),
    seam(
        "numbered_servers",
        "verl.workers.rollout.replica:RolloutReplica.init_hybrid",
        "the servers of a further policy are counted on from those of the policies before it, on both sides",
        reads(
            "verl.workers.rollout.replica:RolloutReplica.init_hybrid",
            "self.world_size * self.replica_rank : self.world_size * (self.replica_rank + 1)",
        ),
        reads("verl.workers.rollout.llm_server:LLMServerManager", 'if not hasattr(self, "rollout_replica_class")'),
        reads(
            "verl.workers.engine_workers:ActorRolloutRefWorker.init_model",
            "config=rollout_config, model_config=model_config, device_mesh=rollout_device_mesh",
        ),
        spells(f"{_SERVED_BY}.vllm_rollout.vllm_rollout:ServerAdapter.__init__", "self.replica_rank = replica_rank"),
        spells(
            f"{_SERVED_BY}.sglang_rollout.sglang_rollout:ServerAdapter.__init__", "self.replica_rank = replica_rank"
        ),
        removal="when verl has several actors in one run",
    ),
    seam(
        "requests_of_policies",
        "transfer_queue:KVBatchMeta",
        "the rows of a policy are a batch of their own",
        takes("transfer_queue:KVBatchMeta", "keys", "tags", "partition_id", "fields", "extra_info"),
    ),
    override("_rollout_server_managers", "the servers of further policies are counted and profiled too"),
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
    override(
        "_save_checkpoint", "the schedule's state and the replay are part of a checkpoint", says=("default_local_dir",)
    ),
    override("_load_checkpoint", "both are read back", says=("resume_from_path",)),
    seam(
        "newest_checkpoint",
        "verl.utils.checkpoint.checkpoint_manager:find_latest_ckpt_path",
        "a checkpoint of another schedule or of other heads is refused before verl loads it",
        takes("verl.utils.checkpoint.checkpoint_manager:find_latest_ckpt_path", "path"),
        reads(f"{TRAINER}._load_checkpoint", "find_latest_ckpt_path(checkpoint_folder)"),
    ),
    override("_compute_metrics", "our metrics and the end-of-step hook", "batch", "metrics"),
    override("on_validate_begin", "what validation asks the servers is not counted as the step's"),
    override("on_validate_end", "as above"),
    override(
        "_maybe_log_val_generations",
        "trackers get trees in place of rows",
        *("inputs", "outputs", "scores"),
        says=("self.validation_generations_logger.log(self.config.trainer.logger, samples, self.global_steps)",),
    ),
    override(
        "_val_metrics_update",
        "the episodes of a validation are decided together, and have figures over all of them",
        *("data_sources", "sample_uids", "reward_extra_infos_dict", "sample_turns", "expected_acc_counts"),
        says=("process_validation_metrics(",),
    ),
    override("on_train_end", "a run whose epochs end before its total steps saves its last step too"),
    seam(
        "turns_of_rows",
        f"{TRAINER}._compute_metrics",
        "verl's metrics of turns are replaced, because they count those of rows",
        reads(f"{TRAINER}._compute_metrics", '"training/num_turns/mean"'),
        removal="when verl counts turns of sessions",
    ),
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
        "balanced_partitions",
        "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions",
        "a mini-batch is shared out among the ranks as verl shares out a batch",
        exists("verl.utils.seqlen_balancing:calculate_workload"),
        takes("verl.utils.seqlen_balancing:get_seqlen_balanced_partitions", "k_partitions", "equal_size"),
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
        "response_from_nested",
        "verl.workers.utils.padding:response_from_nested",
        "log-probs of the updated policy are cut to the response, as verl cuts the old ones",
        reads("verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob", '"compute_loss": False'),
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
        reads(
            "transfer_queue.controller:TransferQueueController._handle_kv_list_request",
            "partition.custom_meta.get(index, {})",
        ),
    ),
)
