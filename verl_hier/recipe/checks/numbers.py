"""Numbers of verl's own blocks that are out of range.

verl and its engines find most of these only when they first use them, or never. The numbers of our own options have
their ranges in their annotations (`host.constraints`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.host.constraints import Range
from verl_hier.recipe.checks.rule import needs_critic, rule, there, value
from verl_hier.recipe.composed import ComposedRecipe


@dataclass(frozen=True)
class Number:
    """What a recipe line may hold."""

    range: Range
    """The numbers that are allowed."""
    whole: bool = False
    """Whether fractions are refused."""
    null: bool = False
    """Whether it may be null."""
    off: float | None = None
    """One more number that is allowed, which switches something off."""

    def __str__(self) -> str:
        bounds = f"{self.range}"
        text = f"a {'whole ' * self.whole}number {'of ' * bounds.startswith('at ')}{bounds}"
        text += "" if self.off is None else f", or {self.off:g}"
        return text + (", or null" if self.null else "")

    def holds(self, given: Any) -> bool:
        """Whether a value is allowed."""
        if given is None:
            return self.null
        if isinstance(given, bool) or not isinstance(given, int if self.whole else (int, float)):
            return False
        return math.isfinite(given) and (given == self.off or self.range.problem(given) is None)


_COUNT = Number(Range(1), whole=True)
_COUNT_OR_NULL = Number(Range(1), whole=True, null=True)
_COUNT_OR_OFF = Number(Range(0), whole=True, off=-1)
_SIZE = Number(Range(1), whole=True, off=-1)
_FROM_ZERO = Number(Range(0))
_POSITIVE = Number(Range(0, open=True))
_SHARE = Number(Range(0, 1))
_SHARE_ABOVE_ZERO = Number(Range(0, 1, open=True))

_OPTIMISER = {
    "lr": _SHARE_ABOVE_ZERO,
    "weight_decay": _FROM_ZERO,
    "lr_warmup_steps_ratio": _SHARE,
    "lr_warmup_steps": Number(Range(0), whole=True, null=True, off=-1),
    "total_training_steps": Number(Range(1), whole=True, null=True, off=-1),
    "min_lr_ratio": Number(Range(0, 1), null=True),
    "num_cycles": _POSITIVE,
    "clip_grad": Number(Range(0, open=True), null=True),
}
_SAMPLING = {
    "top_p": _SHARE_ABOVE_ZERO,
    "top_k": _COUNT_OR_OFF,
    "n": _COUNT,
}
_ACTOR = {
    "ppo_mini_batch_size": _COUNT,
    "ppo_micro_batch_size": _COUNT_OR_NULL,
    "ppo_micro_batch_size_per_gpu": _COUNT_OR_NULL,
    "ppo_max_token_len_per_gpu": _COUNT,
    "ppo_epochs": _COUNT,
    "clip_ratio": _SHARE_ABOVE_ZERO,
    "clip_ratio_low": _SHARE_ABOVE_ZERO,
    "clip_ratio_high": _POSITIVE,
    "clip_ratio_c": Number(Range(1, open=True)),
    "kl_loss_coef": _FROM_ZERO,
    "entropy_coeff": Number(Range()),
    "grad_clip": _POSITIVE,
    "loss_scale_factor": Number(Range(0, open=True), null=True),
    "ulysses_sequence_parallel_size": _COUNT,
    "fsdp_config.fsdp_size": _SIZE,
    "fsdp_config.ulysses_sequence_parallel_size": _COUNT,
}
_ROLLOUT = {
    "temperature": _POSITIVE,
    "repetition_penalty": _POSITIVE,
    "prompt_length": _COUNT,
    "response_length": _COUNT,
    "nnodes": Number(Range(0), whole=True),
    "n_gpus_per_node": Number(Range(0), whole=True),
    "gpu_memory_utilization": _SHARE_ABOVE_ZERO,
    "tensor_model_parallel_size": _COUNT,
    "data_parallel_size": _COUNT,
    "pipeline_model_parallel_size": _COUNT,
    "expert_parallel_size": Number(Range(1), whole=True, null=True),
    "max_num_batched_tokens": _COUNT_OR_NULL,
    "max_model_len": _COUNT_OR_NULL,
    "max_num_seqs": _COUNT_OR_NULL,
    "log_prob_micro_batch_size": _COUNT_OR_NULL,
    "log_prob_micro_batch_size_per_gpu": _COUNT_OR_NULL,
    "log_prob_max_token_len_per_gpu": _COUNT_OR_NULL,
    "agent.num_workers": _COUNT,
    "checkpoint_engine.update_weights_bucket_megabytes": _COUNT,
    "val_kwargs.temperature": _FROM_ZERO,
}
_MODEL = {
    "lora_rank": Number(Range(0), whole=True, null=True),
    "lora_alpha": _POSITIVE,
    "lora.rank": Number(Range(0), whole=True),
    "lora.alpha": _POSITIVE,
    "lora.dropout": _SHARE,
}
_CRITIC = {
    "ppo_mini_batch_size": _COUNT,
    "ppo_micro_batch_size_per_gpu": _COUNT_OR_NULL,
    "ppo_max_token_len_per_gpu": _COUNT,
    "forward_max_token_len_per_gpu": _COUNT,
    "ppo_epochs": _COUNT,
    "cliprange_value": _POSITIVE,
    "grad_clip": _POSITIVE,
}
_DATA = {
    "train_batch_size": _COUNT,
    "gen_batch_size": _COUNT_OR_NULL,
    "val_batch_size": _COUNT_OR_NULL,
    "max_prompt_length": _COUNT,
    "max_response_length": _COUNT,
    "train_max_samples": _SIZE,
    "val_max_samples": _SIZE,
    "dataloader_num_workers": Number(Range(0), whole=True),
}
_ALGORITHM = {
    "gamma": _SHARE,
    "lam": _SHARE,
    "kl_ctrl.kl_coef": _FROM_ZERO,
    "kl_ctrl.horizon": _POSITIVE,
    "kl_ctrl.target_kl": _POSITIVE,
}
_TRAINER = {
    "total_epochs": _COUNT,
    "total_training_steps": _COUNT_OR_NULL,
    "save_freq": _COUNT_OR_OFF,
    "test_freq": _COUNT_OR_OFF,
    "nnodes": _COUNT,
    "n_gpus_per_node": _COUNT,
    "critic_warmup": Number(Range(0), whole=True),
    "log_val_generations": Number(Range(0), whole=True),
    "max_actor_ckpt_to_keep": _COUNT_OR_NULL,
    "max_critic_ckpt_to_keep": _COUNT_OR_NULL,
    "v1.separate_async.parameter_sync_step": _COUNT,
}
_OTHERS = {
    "reward.num_workers": _COUNT,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": _COUNT,
    "ray_kwargs.ray_init.num_cpus": _COUNT_OR_NULL,
    "ray_kwargs.ray_init.num_gpus": Number(Range(0), whole=True, null=True),
}


def _below(block: str, numbers: dict[str, Number]) -> dict[str, Number]:
    return {f"{block}.{name}": number for name, number in numbers.items()}


NUMBERS: dict[str, Number] = {
    **_below("data", _DATA),
    **_below("trainer", _TRAINER),
    **_below("algorithm", _ALGORITHM),
    **_below("actor_rollout_ref.actor", _ACTOR),
    **_below("actor_rollout_ref.actor.optim", _OPTIMISER),
    **_below("actor_rollout_ref.rollout", _ROLLOUT | _SAMPLING),
    **_below("actor_rollout_ref.rollout.val_kwargs", _SAMPLING),
    **_below("actor_rollout_ref.model", _MODEL),
    **_below("critic.model", _MODEL),
    **_below("critic", _CRITIC),
    **_below("critic.optim", _OPTIMISER),
    **_OTHERS,
}
"""Recipe line to what it may hold. A line that a recipe does not have is not looked at."""


@rule
def check_numbers(recipe: ComposedRecipe) -> None:
    """Refuse a number of verl's own blocks that is out of range, a fraction where only whole numbers make sense, and a
    word instead of a number."""
    critic = needs_critic(recipe.config)
    for line, number in NUMBERS.items():
        if line.startswith("critic.") and not critic:
            continue
        if there(recipe.config, line):
            given = value(recipe.config, line)
            if not number.holds(given):
                raise RecipeError(f"{line}: expected {number}, got {given!r}.")


@rule
def check_betas(recipe: ComposedRecipe) -> None:
    """Refuse moments of the optimiser that are not two numbers from 0 to below 1."""
    for line in ("actor_rollout_ref.actor.optim.betas", "critic.optim.betas"):
        betas = value(recipe.config, line)
        if betas is None:
            continue
        good = isinstance(betas, list | tuple) and len(betas) == 2
        if not good or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas):
            raise RecipeError(f"{line}: expected two numbers of at least 0 and below 1, got {betas!r}.")
