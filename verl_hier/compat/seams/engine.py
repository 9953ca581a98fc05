"""What the tree engine uses of verl's FSDP engine, and of transformers and torch below it."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import exists, reads, takes
from verl_hier.compat.seams.seam import seam

_FSDP = "verl.workers.engine.fsdp.transformer_impl"
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
