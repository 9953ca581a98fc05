"""What a recipe line puts around verl's workers of the actor: a limit on how far an update goes, and adapters."""

from __future__ import annotations

from verl_hier.beside.adapters import worker_with_adapters
from verl_hier.compat.extension import TrainerExtension
from verl_hier.engines.kl_limit import worker_with_limit
from verl_hier.host.servers import keeps_adapters, rollout_server
from verl_hier.recipe.policies import lines_of_adapters

HAVE_ADAPTERS = ("fsdp", "fsdp2")
"""Strategies of verl whose engine makes adapters with peft."""


class KlLimit(TrainerExtension):
    """`hier.update.max_kl`: optimiser steps are left out beyond a divergence from the policy that was sampled."""

    def actor_worker(self, worker: type) -> type:
        update = self.trainer.hier.update
        return worker_with_limit(worker, update.max_kl, update.kl_per == "action")


class ActorAdapters(TrainerExtension):
    """`actor_rollout_ref.model.lora_rank`: an adapter for each policy, with seeded weights, served merged or apart."""

    def actor_worker(self, worker: type) -> type:
        hier, block = self.trainer.hier, self.trainer.config.actor_rollout_ref
        if block.actor.strategy not in HAVE_ADAPTERS:
            return worker
        apart = keeps_adapters(rollout_server(self.trainer.host, block.rollout.name), block.model)
        return worker_with_adapters(worker, lines_of_adapters(hier.policies), hier.seed, apart)
