"""Critics, a second model, teachers and probes, in the order in which a trainer calls them; docs/critics.md."""

from __future__ import annotations

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import TrainerExtensionSpec, lazy


@hookimpl
def hier_trainer_extensions() -> list[TrainerExtensionSpec]:
    return [
        TrainerExtensionSpec("critic_heads", "value_heads", lazy("verl_hier.beside.critic:CriticHeads")),
        TrainerExtensionSpec("replay_critic", "replay", lazy("verl_hier.beside.replay:ReplayCritic")),
        TrainerExtensionSpec("process_reward", "process_reward", lazy("verl_hier.beside.process_reward:ProcessReward")),
        TrainerExtensionSpec("teachers", "teachers", lazy("verl_hier.beside.teachers:Teachers")),
        TrainerExtensionSpec("probes", "probes", lazy("verl_hier.beside.probes:Probes")),
    ]
