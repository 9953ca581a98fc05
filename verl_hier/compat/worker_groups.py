"""Further groups of verl's workers on the devices of its actor."""

from __future__ import annotations

from typing import Any

from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.single_controller.ray.base import create_colocated_worker_cls
from verl.trainer.ppo.utils import Role

ACTORS = (Role.ActorRolloutRef, Role.ActorRollout, Role.Actor)
"""What verl calls the role of its actor, whichever parts that has."""


def role_of_actor(trainer: Any) -> Role:
    """The role under which a trainer has its actor."""
    return next(role for role in ACTORS if role in trainer.role_worker_mapping)


def started_group(trainer: Any, worker: Any, role: Role, config: Any, name: str) -> Any:
    """A worker group like verl's own for the actor (trainer_base.py, `_setup`), with the models loaded.

    Args:
        trainer: verl's trainer, whose pool of the actor has room for one more group.
        worker: class of the workers, a Ray remote one.
        role: which parts of `ActorRolloutRefWorker` they have.
        config: their `actor_rollout_ref`.
        name: begins the names of the processes.
    """
    made = RayClassWithInitArgs(
        cls=worker,
        config=config,
        distillation_config=trainer.config.get("distillation"),
        role=str(role),
    )
    group = RayWorkerGroup(
        resource_pool=trainer.resource_pool_manager.get_resource_pool(role_of_actor(trainer)),
        ray_cls_with_init=create_colocated_worker_cls(class_dict={str(role): made}),
        name_prefix=name,
        device_name=trainer.config.trainer.device,
    )
    workers = group.spawn(prefix_set={str(role)})[str(role)]
    workers.init_model()
    return workers
