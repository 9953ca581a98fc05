"""What a recipe line puts around verl's workers of the actor: a limit on how far an update goes, and adapters."""

from __future__ import annotations

from verl_hier.beside.adapters import worker_with_adapters
from verl_hier.compat.extension import TrainerExtension
from verl_hier.engines.kl_limit import worker_with_limit
from verl_hier.recipe.policies import lines_of_adapters

HAVE_ADAPTERS = ("fsdp", "fsdp2")
"""Strategies of verl whose engine makes adapters with peft."""


class KlLimit(TrainerExtension):
    """`hier.update.max_kl`: optimiser steps are left out beyond a divergence from the policy that was sampled."""

    def actor_worker(self, worker: type) -> type:
        update = self.trainer.hier.update
        return worker_with_limit(worker, update.max_kl, update.kl_per == "action")


class ActorAdapters(TrainerExtension):
    """`actor_rollout_ref.model.lora_rank`: an adapter for each policy, with seeded weights, served merged."""

    def actor_worker(self, worker: type) -> type:
        hier = self.trainer.hier
        if self.trainer.config.actor_rollout_ref.actor.strategy not in HAVE_ADAPTERS:
            return worker
        return worker_with_adapters(worker, lines_of_adapters(hier.policies), hier.seed)
