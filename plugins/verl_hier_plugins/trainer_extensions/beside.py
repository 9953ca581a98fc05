"""Critics, a second model, teachers, probes and what changes the actor's workers, in the order in which a trainer calls
them; docs/critics.md."""

from __future__ import annotations

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import TrainerExtensionSpec


@hookimpl
def hier_trainer_extensions() -> list[TrainerExtensionSpec]:
    return [
        TrainerExtensionSpec("critic_heads", "hier.value_heads", lazy("verl_hier.beside.critic:CriticHeads")),
        TrainerExtensionSpec("replay_critic", "hier.replay", lazy("verl_hier.beside.replay:ReplayCritic")),
        TrainerExtensionSpec(
            "process_reward", "hier.process_reward", lazy("verl_hier.beside.process_reward:ProcessReward")
        ),
        TrainerExtensionSpec(
            "self_imitation", "hier.self_imitation", lazy("verl_hier.beside.self_imitation:SelfImitation")
        ),
        TrainerExtensionSpec("teachers", "hier.teachers", lazy("verl_hier.beside.teachers:Teachers")),
        TrainerExtensionSpec("probes", "hier.probes", lazy("verl_hier.beside.probes:Probes")),
        TrainerExtensionSpec("kl_limit", "hier.update.max_kl", lazy("verl_hier.beside.actor_workers:KlLimit")),
        TrainerExtensionSpec(
            "adapters", "actor_rollout_ref.model.lora_rank", lazy("verl_hier.beside.actor_workers:ActorAdapters")
        ),
    ]
