"""What a critic with several heads uses of verl's critic."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import reads, takes
from verl_hier.compat.seams.seam import override, seam

_HEAD = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead"
_LOSS = "verl.workers.utils.losses:value_loss"

CRITIC = (
    override("_setup", "the critic gets a loss over its heads", says=("self.critic_wg.set_loss_fn(",)),
    override(
        "_compute_values",
        "the values of each head are read in place of one value",
        "batch",
        "metrics",
        says=("self.critic_wg.infer_batch(batch)", 'select_fields=["values", "response_mask"]'),
    ),
    seam(
        "critic_worker",
        "verl.workers.engine_workers:TrainingWorker.__init__",
        "the worker of the critic builds the engine that its model type names",
        takes("verl.workers.engine_workers:TrainingWorker.__init__", "config"),
        reads("verl.workers.engine_workers:TrainingWorker.__init__", "self.engine", "model_type"),
    ),
    seam(
        "actor_worker",
        "verl.workers.engine_workers:ActorRolloutRefWorker",
        "the actor's engine leaves optimiser steps out beyond hier.update.max_kl",
        reads("verl.workers.engine_workers:ActorRolloutRefWorker", "actor_worker_cls", "self.actor_worker_cls(config="),
        reads(
            "verl.workers.engine.base:BaseEngine.train_batch",
            *("self.optimizer_zero_grad()", "self.optimizer_step()", 'outputs["metrics"]["grad_norm"]'),
        ),
    ),
    seam(
        "critic_copy",
        "verl.workers.engine_workers:TrainingWorker",
        "a critic that learns from a replay has a copy, which is made, saved and read with it and follows its steps",
        takes("verl.workers.engine_workers:TrainingWorker.train_batch", "data"),
        takes("verl.workers.engine_workers:TrainingWorker.save_checkpoint", "local_path"),
        takes("verl.workers.engine_workers:TrainingWorker.load_checkpoint", "local_path"),
        reads("verl.workers.engine_workers:TrainingWorker.train_mini_batch", "self.train_batch(mini_batch_td)"),
        reads("verl.workers.engine_workers:TrainingWorker.reset", "self.engine.initialize()"),
    ),
    seam(
        "actor_log_probs",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob",
        "the actor answers the questions of probes as it computes the log-probs of rows",
        reads(
            "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob",
            *('"calculate_entropy"', '"compute_loss"', '"temperature"'),
            *("self.actor_rollout_wg.compute_log_prob(batch)", 'response_from_nested(data.pop("log_probs")'),
        ),
    ),
    seam(
        "critic_outputs",
        f"{_HEAD}.prepare_model_outputs",
        "the values of a head are made of its output as verl makes those of one",
        takes(f"{_HEAD}.prepare_model_outputs", "output", "output_args", "micro_batch", "logits_processor_func"),
    ),
    seam(
        "critic_model",
        "verl.utils.model:load_valuehead_model",
        "a model with an output for each head is loaded in its place",
        takes(
            "verl.utils.model:load_valuehead_model",
            *("local_path", "torch_dtype", "model_config", "trust_remote_code"),
        ),
        removal="when the configuration of a critic has a number of outputs",
    ),
    seam(
        "value_loss",
        _LOSS,
        "each head is trained by verl's clipped loss over the places that it reads",
        takes(_LOSS, "config", "model_output", "data", "dp_group"),
        reads(_LOSS, 'model_output["values"]', 'data.select("values", "returns", "response_mask")', "batch_num_tokens"),
    ),
)
