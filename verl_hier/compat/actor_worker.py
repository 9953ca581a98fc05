"""The class of verl's workers of the actor that a recipe needs: verl's own, with what it lacks around it."""

from __future__ import annotations

from typing import Any

from verl.workers.engine_workers import ActorRolloutRefWorker

from verl_hier.compat.losses import worker_with_losses
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import lazy
from verl_hier.recipe.policies import lines_of_adapters
from verl_hier.recipe.schema import HierConfig

HAVE_ADAPTERS = ("fsdp", "fsdp2")
"""Strategies of verl whose engine makes adapters with peft."""
WITH_LIMIT = lazy("verl_hier.engines.kl_limit:worker_with_limit")
WITH_ADAPTERS = lazy("verl_hier.beside.adapters:worker_with_adapters")
"""What puts a class around verl's worker; a run that needs neither imports nothing of the upper rooms."""


def actor_worker(config: Any, hier: HierConfig, host: PluginHost) -> type | None:
    """The class that a run needs in place of `ActorRolloutRefWorker`; None where that is enough.

    Args:
        config: the whole composed configuration.
        hier: its block `hier`.
        host: the plugins of the run.
    """
    worker: type = ActorRolloutRefWorker
    actor = config.actor_rollout_ref.actor
    if actor.policy_loss.get("loss_mode", "vanilla") in host.specs("policy_loss"):
        worker = worker_with_losses(worker, hier.plugins)
    if hier.update.max_kl is not None:
        worker = WITH_LIMIT(worker, hier.update.max_kl, hier.update.kl_per == "action")
    if config.actor_rollout_ref.model.get("lora_rank") and actor.strategy in HAVE_ADAPTERS:
        worker = WITH_ADAPTERS(worker, lines_of_adapters(hier.policies), hier.seed)
    return None if worker is ActorRolloutRefWorker else worker
