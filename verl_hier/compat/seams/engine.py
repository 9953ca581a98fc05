"""What the tree engine uses of verl's FSDP engine, and of transformers and torch below it."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import exists, reads, takes
from verl_hier.compat.seams.seam import seam

_FSDP = "verl.workers.engine.fsdp.transformer_impl"
_SAVES = "verl.utils.checkpoint.fsdp_checkpoint_manager"
_WORKERS = "verl.workers.engine_workers"
_ENGINE = f"{_FSDP}:FSDPEngine"
_HEAD = f"{_FSDP}:FSDPEngineWithLMHead"

ENGINE = (
    seam(
        "engine_vendor",
        "verl.workers.engine.base:EngineRegistry.get_engine_cls",
        "`engine: tree` is an environment variable by which verl chooses an engine class",
        takes("verl.workers.engine.base:EngineRegistry.register", "model_type", "backend", "device", "vendor"),
        reads(
            "verl.workers.engine.base:EngineRegistry.get_engine_cls",
            'vendor = os.getenv("VERL_ENGINE_VENDOR")',
            "vendor_key = (device, vendor)",
        ),
        removal="when verl's configuration names an engine class",
    ),
    seam(
        "engine_micro_batches",
        f"{_ENGINE}.forward_backward_batch",
        "copied, because its micro-batches are chosen by length; what is copied has to stay as it is",
        reads(
            f"{_ENGINE}.forward_backward_batch",
            "tu.assign_non_tensor(data, sp_size=self.ulysses_sequence_parallel_size)",
            'return_model_output = tu.get_non_tensor_data(data=data, key="return_model_output", default=False)',
            'batch_num_tokens = data["loss_mask"].sum().to(get_device_id())',
            "tu.assign_non_tensor(data, batch_num_tokens=batch_num_tokens.item())",
            "tu.assign_non_tensor(data, dp_size=self.get_data_parallel_size())",
            """micro_batches, indices = prepare_micro_batches(
                data=data, dp_group=self.get_data_parallel_group(), same_micro_num_in_dp=True
            )""",
            "self._gradient_sync_context(is_last_micro_batch=micro_batch_idx == len(micro_batches) - 1)",
            "loss, meta_info = self.forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)",
            "scaler.scale(loss).backward()",
            'meta_info.pop("model_output", None)',
            "return postprocess_batch_func(output_lst=output_lst, indices=indices, data=data)",
        ),
        reads(
            "verl.workers.engine.utils:postprocess_batch_func",
            "if use_dynamic_bsz: model_output[key] = restore_dynamic_batch(model_output[key], indices)",
        ),
        removal="when an engine can bring its own micro-batches",
    ),
    seam(
        "engine_inputs",
        f"{_HEAD}.forward_step",
        "a micro-batch goes through the model as one row, the tree",
        takes(f"{_HEAD}.prepare_model_inputs", "micro_batch"),
        takes(f"{_HEAD}.prepare_model_outputs", "output", "output_args", "micro_batch", "logits_processor_func"),
        reads(
            f"{_HEAD}.forward_step",
            "model_inputs, output_args = self.prepare_model_inputs(micro_batch=micro_batch)",
            "raw_output = self.module( **model_inputs, use_cache=False, )",
        ),
        removal="when verl forwards shared prefixes once",
    ),
    seam(
        "engine_outputs",
        f"{_HEAD}.prepare_model_outputs",
        "log-probs and entropies of the tree's steps are computed by verl, as those of a packed row",
        reads(
            f"{_HEAD}.prepare_model_outputs",
            'input_ids_rmpad_rolled = output_args["input_ids_rmpad_rolled"]',
            'temperature_rmpad = output_args["temperature_rmpad"]',
            'pad_size = output_args["pad_size"]',
            'output_args.get("temperature_is_one", False)',
            "cu_seqlens = input_ids.offsets()",
        ),
        removal="when verl forwards shared prefixes once",
    ),
    seam(
        "engine_settings",
        "verl.workers.config:FSDPEngineConfig",
        "what the tree engine refuses is asked of these fields",
        exists("verl.workers.config:HFModelConfig"),
        reads("verl.workers.config.engine:FSDPEngineConfig", "pad_to_length: bool", "ulysses_sequence_parallel_size"),
        reads("verl.workers.config.model:HFModelConfig", "use_fused_kernels: bool", "mtp: MtpConfig"),
    ),
    seam(
        "adapters_of_policies",
        f"{_FSDP}:FSDPEngine._build_lora_module",
        "policies are adapters on one model, of which verl's engine has one; a run with one is saved merged too",
        reads(f"{_ENGINE}._build_model_optimizer", "if self._is_lora: module = self._build_lora_module(module)"),
        reads(
            f"{_ENGINE}.initialize",
            "self.checkpoint_manager = FSDPCheckpointManager(",
            "lr_scheduler=self.lr_scheduler",
        ),
        reads(
            f"{_ENGINE}._merged_lora_per_tensor_param", "with merged_lora_context(self.module, backup_adapters=True):"
        ),
        reads(f"{_ENGINE}.get_per_tensor_param", "return self._merged_lora_per_tensor_param(), None"),
        reads(f"{_ENGINE}.__init__", "self._uses_fsdp2_cpu_offload_policy = False"),
        takes("verl.workers.config.optimizer:build_optimizer", "parameters", "config"),
        removal="when one model of verl has several adapters, https://github.com/verl-project/verl/issues/7909",
    ),
    seam(
        "checkpoints_of_adapters",
        f"{_SAVES}:FSDPCheckpointManager",
        "each adapter has a checkpoint, and its model is written merged",
        takes(f"{_SAVES}:FSDPCheckpointManager.__init__", "model", "optimizer", "lr_scheduler", "processing_class"),
        reads(f"{_SAVES}:FSDPCheckpointManager.load_checkpoint", "if self.is_lora_only_state_dict(model_state_dict):"),
        reads(f"{_SAVES}:FSDPCheckpointManager.save_checkpoint", "if self.should_save_hf_model:"),
        takes("verl.utils.transformers_compat:drop_tied_target_keys", "state_dict", "model", "model_config"),
        takes("verl.utils.model:get_hf_auto_model_class", "hf_config"),
        takes("verl.utils.fsdp_utils:load_fsdp_model_to_gpu", "model"),
        removal="when verl saves the merged model of a run with adapters",
    ),
    seam(
        "workers_with_adapters",
        f"{_WORKERS}:ActorRolloutRefWorker.init_model",
        "a request says which adapter it is for, and each has rollout servers of its own",
        reads(
            f"{_WORKERS}:ActorRolloutRefWorker.init_model",
            *("self.actor = self.actor_worker_cls(config=actor_training_config)", "self.actor.reset()"),
            *("self.actor.set_loss_fn(self.loss_fn)", "actor_config.model_config = model_config"),
        ),
        reads(f"{_WORKERS}:ActorRolloutRefWorker.update_actor", "self.actor.train_mini_batch(data=data)"),
        reads(f"{_WORKERS}:ActorRolloutRefWorker.compute_log_prob", "self.actor.infer_batch(data)"),
        takes(f"{_WORKERS}:ActorRolloutRefWorker.update_weights", "global_steps", "mode"),
        takes("verl.checkpoint_engine:CheckpointEngineManager.add_replicas", "replicas"),
        removal="when one model of verl has several adapters, https://github.com/verl-project/verl/issues/7909",
    ),
    seam(
        "attention_interface",
        "transformers:AttentionInterface.register",
        "the attention of a tree is registered under a name that a model's configuration can have",
        exists("transformers:PreTrainedModel.set_attn_implementation"),
        reads(
            "transformers.masking_utils",
            "if config._attn_implementation not in ALL_MASK_ATTENTION_FUNCTIONS._global_mapping:",
        ),
    ),
)
